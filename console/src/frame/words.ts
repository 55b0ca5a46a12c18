/** Numbers and times as people read them. */

import { serverNow } from "../api/clock";

export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

export function count(n: number | null | undefined): string {
  if (n == null) return "–";
  if (n < 10_000) return n.toLocaleString("en");
  if (n < 1e6) return `${(n / 1e3).toFixed(n < 1e5 ? 1 : 0)}k`;
  return `${(n / 1e6).toFixed(1)}M`;
}

export function dollars(cost: number | string | null | undefined): string {
  if (cost == null || cost === "") return "–";
  const n = Number(cost);
  if (n === 0) return "$0";
  return n < 0.01 ? `$${n.toPrecision(2)}` : `$${n.toFixed(2)}`;
}

export function bytes(n: number | null | undefined): string {
  if (n == null) return "–";
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]] as const)
    if (n >= size) return `${(n / size).toFixed(1)} ${unit}`;
  return `${n} B`;
}

/** How far from `now` a time is. Clocks differ: what is in the future by little is now. */
export function ago(time: string | null | undefined, now = serverNow()): string {
  if (!time) return "–";
  const seconds = (now - Date.parse(time)) / 1000;
  if (Number.isNaN(seconds)) return "–";
  const far = Math.abs(seconds);
  if (far < 5) return "now";
  const [n, unit] =
    far < 60 ? [far, "s"] : far < 3600 ? [far / 60, "min"] : far < 86_400 ? [far / 3600, "h"] : [far / 86_400, "d"];
  return seconds > 0 ? `${Math.floor(n)} ${unit} ago` : `in ${Math.floor(n)} ${unit}`;
}

export function exact(time: string | null | undefined): string {
  return time ? new Date(time).toISOString().replace("T", " ").replace("Z", " UTC") : "";
}

/** Text without what changes how the rest is shown: colours of terminals, marks of direction, control characters. */
export function visible(text: string): string {
  return (
    text
      // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is looked for
      .replace(/\u001b\[[0-9;?]*[ -/]*[@-~]/g, "")
      // biome-ignore lint/suspicious/noControlCharactersInRegex: as above
      .replace(/[\u0000-\u0008\u000b-\u001f\u007f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (mark) =>
        `⟨${mark.charCodeAt(0).toString(16).padStart(4, "0")}⟩`,
      )
  );
}
