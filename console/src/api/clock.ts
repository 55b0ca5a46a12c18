/** The server's time. The clock of a browser may be hours off, and ranges such as "the last hour" are the server's. */

const NOISE_MS = 2_000; // the header says whole seconds, and takes a while to come
let aheadMs = 0;

/** Takes the `Date` header of an answer. */
export function hearTime(date: string | null) {
  const ahead = date ? Date.parse(date) - Date.now() : Number.NaN;
  if (!Number.isNaN(ahead)) aheadMs = Math.abs(ahead) > NOISE_MS ? ahead : 0;
}

export const serverNow = () => Date.now() + aheadMs;
