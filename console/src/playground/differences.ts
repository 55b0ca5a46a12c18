export type Change = { channel: string; was: unknown; is: unknown };

/** The channels of a state whose values differ from those of the checkpoint before it, by name. */
export function differences(before: unknown, after: unknown): Change[] {
  const was = (before ?? {}) as Record<string, unknown>;
  const is = (after ?? {}) as Record<string, unknown>;
  return [...new Set([...Object.keys(was), ...Object.keys(is)])]
    .sort()
    .filter((channel) => JSON.stringify(was[channel]) !== JSON.stringify(is[channel]))
    .map((channel) => ({ channel, was: was[channel], is: is[channel] }));
}

/** The part of a list that came on top of an older one; the whole value where it is another. */
export function added(change: Change): unknown {
  const { was, is } = change;
  if (Array.isArray(was) && Array.isArray(is) && JSON.stringify(is.slice(0, was.length)) === JSON.stringify(was))
    return is.slice(was.length);
  return is;
}
