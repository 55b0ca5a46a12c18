import type { Schemas } from "../api/client";

export type Run = Schemas["TraceRun"];

/** What a list of runs reads of each: enough for every column, and no payloads. */
export const SELECT = [
  "id", "name", "run_type", "start_time", "end_time", "status", "error", "trace_id", "session_id", "dotted_order",
  "inputs_preview", "outputs_preview", "total_tokens", "total_cost", "first_token_time", "tags", "thread_id", "feedback_stats",
] as const;

export type Column = { id: string; name: string; width: string };
export const COLUMNS: Column[] = [
  { id: "state", name: "State", width: "3.5rem" },
  { id: "name", name: "Name", width: "minmax(9rem,1.2fr)" },
  { id: "input", name: "Input", width: "minmax(10rem,2fr)" },
  { id: "output", name: "Output", width: "minmax(10rem,2fr)" },
  { id: "start", name: "Began", width: "6.5rem" },
  { id: "latency", name: "Took", width: "5.5rem" },
  { id: "first", name: "First token", width: "5.5rem" },
  { id: "tokens", name: "Tokens", width: "5rem" },
  { id: "cost", name: "Cost", width: "5rem" },
  { id: "tags", name: "Tags", width: "8rem" },
  { id: "thread", name: "Thread", width: "7rem" },
  { id: "feedback", name: "Feedback", width: "7rem" },
];
export const USUAL = ["state", "name", "input", "output", "start", "latency", "tokens", "cost"];

export const columnsOf = (chosen: string | undefined) => {
  const ids = chosen ? chosen.split(",") : USUAL;
  const found = COLUMNS.filter((column) => ids.includes(column.id));
  return found.length ? found : COLUMNS.filter((column) => USUAL.includes(column.id));
};

export const secondsOf = (run: { start_time?: string | null; end_time?: string | null }) =>
  run.start_time && run.end_time ? (Date.parse(run.end_time) - Date.parse(run.start_time)) / 1000 : null;
