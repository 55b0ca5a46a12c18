import { X } from "lucide-react";
import { useEffect, useState } from "react";
import type { TracesSearch } from "../router";
import { conditionOf, FIELDS, type FieldId, joined, partsOf, RANGES, rangeOf } from "./filters";

type Props = { search: TracesSearch; onChange: (next: Partial<TracesSearch>) => void };

/** Time, kind, state, text; and conditions, each a chip with the filter text that it stands for. */
export function Filters({ search, onChange }: Props) {
  const parts = search.filter ? partsOf(search.filter) : [];
  const set = (next: string[]) => onChange({ filter: joined(next) || undefined });
  const [typed, setTyped] = useState(search.text ?? "");
  useEffect(() => setTyped(search.text ?? ""), [search.text]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: only what is typed starts the wait
  useEffect(() => {
    if (typed === (search.text ?? "")) return;
    const timer = setTimeout(() => onChange({ text: typed || undefined }), 350);
    return () => clearTimeout(timer);
  }, [typed]);
  return (
    <div className="flex flex-wrap items-center gap-2 px-4 py-2 border-b border-line">
      <select
        className="input"
        aria-label="Time"
        value={search.from ? "chosen" : rangeOf(search)}
        onChange={(event) => onChange({ range: event.target.value, from: undefined, to: undefined })}
      >
        {search.from && <option value="chosen">Chosen in the chart</option>}
        {Object.keys(RANGES).map((range) => (
          <option key={range} value={range}>
            {range === "all" ? "All time" : `Last ${range}`}
          </option>
        ))}
      </select>
      <select
        className="input"
        aria-label="Traces or runs"
        value={search.kind ?? "roots"}
        onChange={(event) => onChange({ kind: event.target.value === "all" ? "all" : undefined })}
      >
        <option value="roots">Traces</option>
        <option value="all">All runs</option>
      </select>
      <select
        className="input"
        aria-label="State"
        value={search.status ?? ""}
        onChange={(event) => onChange({ status: (event.target.value || undefined) as TracesSearch["status"] })}
      >
        <option value="">Any state</option>
        <option value="error">Failed</option>
        <option value="success">Succeeded</option>
        <option value="pending">Running</option>
      </select>
      <input className="input flex-1 min-w-32" aria-label="Text in inputs, outputs or error" placeholder="Text in inputs, outputs or error" value={typed} onChange={(event) => setTyped(event.target.value)} />
      {parts.map((part, index) => (
        <span key={part} className="inline-flex items-center gap-1 rounded bg-accentbg px-2 py-0.5 font-mono text-xs max-w-full">
          <span className="truncate">{part}</span>
          <button type="button" aria-label={`Remove ${part}`} onClick={() => set(parts.filter((_, other) => other !== index))}>
            <X size={12} aria-hidden />
          </button>
        </span>
      ))}
      <Builder onAdd={(condition) => set([...parts, ...partsOf(condition)])} />
    </div>
  );
}

function Builder({ onAdd }: { onAdd: (condition: string) => void }) {
  const [field, setField] = useState<FieldId | "typed">("name");
  const facts = FIELDS.find((each) => each.id === field);
  const [op, setOp] = useState("eq");
  const [key, setKey] = useState("");
  const [value, setValue] = useState("");
  const ops: readonly string[] = facts?.ops ?? [];
  const chosen = ops.includes(op) ? op : (ops[0] ?? "");
  return (
    <form
      className="inline-flex flex-wrap gap-1"
      onSubmit={(event) => {
        event.preventDefault();
        if (!value) return;
        onAdd(field === "typed" ? value : conditionOf(field, chosen, value, key));
        setValue("");
      }}
    >
      <select className="input" aria-label="Field" value={field} onChange={(event) => setField(event.target.value as FieldId)}>
        {FIELDS.map((each) => (
          <option key={each.id} value={each.id}>
            {each.name}
          </option>
        ))}
        <option value="typed">Filter text</option>
      </select>
      {ops.length > 1 && (
        <select className="input" aria-label="Comparison" value={chosen} onChange={(event) => setOp(event.target.value)}>
          {ops.map((each) => (
            <option key={each} value={each}>
              {{ eq: "is", neq: "is not", like: "is like", gt: "over", lt: "under", gte: "at least", lte: "at most" }[each] ?? each}
            </option>
          ))}
        </select>
      )}
      {facts && "pair" in facts && (
        <input className="input w-24" aria-label="Key" placeholder="key" value={key} required onChange={(event) => setKey(event.target.value)} />
      )}
      <input
        className={`input ${field === "typed" ? "w-64 font-mono" : "w-28"}`}
        aria-label="Value"
        placeholder={field === "typed" ? 'eq(name, "agent")' : "value"}
        inputMode={facts && "number" in facts ? "decimal" : undefined}
        value={value}
        onChange={(event) => setValue(event.target.value)}
      />
      <button type="submit" className="button">
        Add
      </button>
    </form>
  );
}
