import type { TracesSearch } from "../router";

export const RANGES = { "1h": 3_600, "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400, all: 0 } as const;
export type Range = keyof typeof RANGES;
export const rangeOf = (search: { range?: string }): Range => (search.range && search.range in RANGES ? (search.range as Range) : "7d");

const quoted = (text: string) => JSON.stringify(text);

/** The parts of a conjunction, as written. What cannot be cut is one part. */
export function partsOf(filter: string): string[] {
  const inside = /^and\(([\s\S]*)\)$/.exec(filter.trim())?.[1];
  if (inside === undefined) return filter.trim() ? [filter.trim()] : [];
  const parts: string[] = [];
  let depth = 0;
  let text: string | null = null;
  let begun = 0;
  for (let at = 0; at < inside.length; at++) {
    const mark = inside[at] as string;
    if (text) {
      if (mark === "\\") at++;
      else if (mark === text) text = null;
    } else if (mark === '"' || mark === "'") text = mark;
    else if (mark === "(" || mark === "[") depth++;
    else if (mark === ")" || mark === "]") depth--;
    else if (mark === "," && depth === 0) {
      parts.push(inside.slice(begun, at).trim());
      begun = at + 1;
    }
  }
  parts.push(inside.slice(begun).trim());
  return depth === 0 && !text ? parts.filter(Boolean) : [filter.trim()];
}

export const joined = (parts: string[]) => (parts.length > 1 ? `and(${parts.join(", ")})` : (parts[0] ?? ""));

export const FIELDS = [
  { id: "name", name: "Name", ops: ["eq", "neq", "like"] },
  { id: "run_type", name: "Kind", ops: ["eq", "neq"] },
  { id: "error", name: "Error holds", ops: ["search"] },
  { id: "latency", name: "Took (s)", ops: ["gt", "lt"], number: true },
  { id: "total_tokens", name: "Tokens", ops: ["gt", "lt"], number: true },
  { id: "total_cost", name: "Cost ($)", ops: ["gt", "lt"], number: true },
  { id: "tag", name: "Tag", ops: ["has"] },
  { id: "metadata", name: "Metadata", ops: ["is"], pair: true },
  { id: "thread_id", name: "Thread", ops: ["eq"] },
  { id: "feedback", name: "Feedback", ops: ["gte", "lte"], pair: true },
] as const;
export type FieldId = (typeof FIELDS)[number]["id"];

/** The text of one condition. `key` is that of metadata or feedback. */
export function conditionOf(field: FieldId, op: string, value: string, key = ""): string {
  if (field === "tag") return `has(tags, ${quoted(value)})`;
  if (field === "error") return `search(error, ${quoted(value)})`;
  if (field === "metadata") return `and(eq(metadata_key, ${quoted(key)}), eq(metadata_value, ${quoted(value)}))`;
  if (field === "feedback") return `and(eq(feedback_key, ${quoted(key)}), ${op}(feedback_score, ${Number(value)}))`;
  if (field === "latency" || field === "total_tokens" || field === "total_cost") return `${op}(${field}, ${Number(value)})`;
  return `${op}(${field}, ${quoted(op === "like" && !value.includes("%") ? `%${value}%` : value)})`;
}

/** The filter of a search as the API takes it: what was typed to look for in any text, and the conditions. */
export function filterOf(search: TracesSearch): string | undefined {
  const parts = search.filter ? partsOf(search.filter) : [];
  if (search.text) parts.push(`or(search(${quoted(search.text)}), search(error, ${quoted(search.text)}))`);
  if (search.status) parts.push(`eq(status, ${quoted(search.status)})`);
  return joined(parts) || undefined;
}

/** The body of `POST /api/v1/runs/query` and its kin, without what only a list needs. */
export function bodyOf(project: string, search: TracesSearch, now: number) {
  const seconds = RANGES[rangeOf(search)];
  // To the minute, so that the same search has the same body for a while.
  const since = seconds ? new Date(Math.floor((now - seconds * 1000) / 60_000) * 60_000).toISOString() : undefined;
  return {
    session: [project],
    is_root: search.kind === "all" ? undefined : true,
    filter: filterOf(search),
    start_time: search.from ?? since,
    end_time: search.to,
  };
}
