import type { Assistant, Client } from "@langchain/langgraph-sdk";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { visible } from "../frame/words";

type Values = Record<string, unknown>;
type Property = { title?: string; type?: string; enum?: unknown[]; default?: unknown; description?: string };
type Props = { client: Client; assistant: Assistant; onSaved: (id: string) => void };

/** What an assistant is configured with, as a form made from its schema. A change of a graph's own assistant makes a new one. */
export function AssistantForm({ client, assistant, onSaved }: Props) {
  const schemas = useQuery({
    queryKey: ["schemas", assistant.assistant_id],
    queryFn: () => client.assistants.getSchemas(assistant.assistant_id),
  });
  const properties = Object.entries((schemas.data?.context_schema?.properties ?? {}) as Record<string, Property>);
  const [name, setName] = useState("");
  const [typed, setTyped] = useState<Record<string, string>>({});
  const [fault, setFault] = useState<string>();
  if (properties.length === 0) return null;
  const context = (assistant.context ?? {}) as Values;
  const isOwn = assistant.metadata?.created_by !== "system";
  const textOf = (field: string, property: Property) => typed[field] ?? textOfValue(context[field] ?? property.default);
  const save = async () => {
    try {
      setFault(undefined);
      const given = properties.filter(([field]) => field in typed).map(([field, property]) => [field, valueOf(typed[field] as string, property)]);
      const next = { ...context, ...Object.fromEntries(given) };
      const saved =
        isOwn && !name
          ? await client.assistants.update(assistant.assistant_id, { context: next })
          : await client.assistants.create({ graphId: assistant.graph_id, name: name || undefined, context: next });
      setTyped({});
      setName("");
      onSaved(saved.assistant_id);
    } catch (error) {
      setFault((error as Error).message);
    }
  };
  return (
    <details className="panel p-2">
      <summary className="font-medium">Configure the assistant</summary>
      <form
        className="grid gap-2 mt-2"
        onSubmit={(event) => {
          event.preventDefault();
          void save();
        }}
      >
        {properties.map(([field, property]) => (
          <label key={field} className="grid gap-0.5">
            <span>{visible(property.title ?? field)}</span>
            {property.description && <span className="text-ink2">{visible(property.description)}</span>}
            <Field property={property} value={textOf(field, property)} onChange={(text) => setTyped({ ...typed, [field]: text })} />
          </label>
        ))}
        <label className="grid gap-0.5">
          <span>Name of a new assistant{isOwn ? "; empty changes this one" : ""}</span>
          <input className="input" value={name} onChange={(event) => setName(event.target.value)} />
        </label>
        <button type="submit" className="button justify-self-start">
          {isOwn && !name ? "Save a new version" : "Make an assistant"}
        </button>
        {fault && <p role="alert" className="text-bad">{visible(fault)}</p>}
      </form>
    </details>
  );
}

function Field({ property, value, onChange }: { property: Property; value: string; onChange: (text: string) => void }) {
  const choices = property.enum ?? (property.type === "boolean" ? [true, false] : undefined);
  if (!choices) return <input className="input" value={value} onChange={(event) => onChange(event.target.value)} />;
  return (
    <select className="input" value={value} onChange={(event) => onChange(event.target.value)}>
      {!choices.map(String).includes(value) && <option value={value}>{value}</option>}
      {choices.map((each) => <option key={String(each)} value={String(each)}>{String(each)}</option>)}
    </select>
  );
}

const textOfValue = (value: unknown) => (value == null ? "" : typeof value === "string" ? value : JSON.stringify(value));

/** What was typed, as the schema wants it. Throws for JSON that is none. */
function valueOf(text: string, property: Property): unknown {
  if (property.type === "string" || (property.enum ?? []).includes(text)) return text;
  if (text === "") return null;
  return property.type ? JSON.parse(text) : parsedOrText(text);
}

function parsedOrText(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
