/** Messages of a run's input or output, in whichever of the usual shapes they were sent. */

export type Message = { role: string; text: string; calls: { name: string; args: unknown; id?: string }[]; name?: string };

type Any = Record<string, unknown>;
const isObject = (value: unknown): value is Any => typeof value === "object" && value !== null && !Array.isArray(value);
const ROLES: Record<string, string> = { human: "user", ai: "assistant", HumanMessage: "user", AIMessage: "assistant", AIMessageChunk: "assistant", SystemMessage: "system", ToolMessage: "tool" };

export function messagesOf(value: unknown): Message[] {
  const lists = isObject(value)
    ? [value.messages, value.generations, value.output, value.choices, value.message]
    : [value];
  for (const list of lists) {
    const items = (Array.isArray(list) ? list.flat(2) : list ? [list] : []).map(messageOf);
    if (items.length && items.every((item) => item !== null)) return items as Message[];
  }
  return [];
}

export function messageOf(value: unknown): Message | null {
  if (Array.isArray(value) && value.length === 2 && value.every((part) => typeof part === "string")) {
    const [role, text] = value as [string, string];
    return { role: ROLES[role] ?? role, text, calls: [] };
  }
  if (!isObject(value)) return null;
  if (isObject(value.message)) return messageOf(value.message);
  const fields = isObject(value.kwargs) ? value.kwargs : isObject(value.data) ? value.data : value;
  const kind = Array.isArray(value.id) ? String(value.id.at(-1)) : String(fields.role ?? fields.type ?? value.type ?? "");
  if (!("content" in fields) || !kind || kind === "undefined") return null;
  return {
    role: ROLES[kind] ?? kind,
    text: textOf(fields.content),
    calls: callsOf(fields),
    name: typeof fields.name === "string" ? fields.name : undefined,
  };
}

function textOf(content: unknown): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return content == null ? "" : JSON.stringify(content);
  return content
    .map((part) => (typeof part === "string" ? part : isObject(part) ? (typeof part.text === "string" ? part.text : `[${String(part.type ?? "part")}]`) : ""))
    .join("");
}

function callsOf(fields: Any): Message["calls"] {
  const calls = fields.tool_calls ?? (isObject(fields.additional_kwargs) ? fields.additional_kwargs.tool_calls : undefined);
  if (!Array.isArray(calls)) return [];
  return calls.filter(isObject).map((call) => {
    const made = isObject(call.function) ? call.function : call;
    return { name: String(made.name ?? ""), args: made.args ?? made.arguments, id: call.id ? String(call.id) : undefined };
  });
}
