import { useDeferredValue, useMemo, useState } from "react";
import { CopyButton } from "./parts";
import { visible } from "./words";

const SHOWN_CHARS = 2_000;
const CHILDREN_MAX = 200;

/** JSON as a tree that opens lazily, with a search and as raw text. Large values show their beginning until they are asked for. */
export function Json({ value, label }: { value: unknown; label: string }) {
  const [raw, setRaw] = useState(false);
  const [typed, setTyped] = useState("");
  const word = useDeferredValue(typed.trim().toLowerCase());
  const text = useMemo(() => (raw || word ? (JSON.stringify(value, null, 2) ?? "") : ""), [raw, word, value]);
  const found = useMemo(
    () => (word ? text.split("\n").map((line, at) => [at, line] as const).filter(([, line]) => line.toLowerCase().includes(word)).slice(0, 200) : []),
    [text, word],
  );
  return (
    <section aria-label={label} className="panel p-2">
      <div className="flex flex-wrap items-center gap-2 mb-1">
        <h3 className="font-medium mr-auto">{label}</h3>
        <input className="input w-36" aria-label={`Search in ${label}`} placeholder="Search" value={typed} onChange={(event) => setTyped(event.target.value)} />
        <button type="button" className="button" aria-pressed={raw} onClick={() => setRaw(!raw)}>
          Raw
        </button>
        <CopyButton text={JSON.stringify(value, null, 2) ?? ""} label={label} />
      </div>
      <div className="font-mono text-xs overflow-x-auto">
        {word ? (
          found.length ? found.map(([at, line]) => <pre key={at} className="whitespace-pre-wrap break-words">{visible(line.trim().slice(0, SHOWN_CHARS))}</pre>) : <p>Nothing in here holds that.</p>
        ) : raw ? (
          <Text of={text} />
        ) : (
          <Branch value={value} depth={0} />
        )}
      </div>
    </section>
  );
}

function Text({ of }: { of: string }) {
  const [chars, setChars] = useState(SHOWN_CHARS);
  return (
    <>
      <span className="whitespace-pre-wrap break-words">{visible(of.slice(0, chars))}</span>
      {of.length > chars && (
        <button type="button" className="button ml-2" onClick={() => setChars(chars * 10)}>
          {(of.length - chars).toLocaleString("en")} more characters
        </button>
      )}
    </>
  );
}

function Branch({ value, depth, name }: { value: unknown; depth: number; name?: string }) {
  const [open, setOpen] = useState(depth < 3);
  const [most, setMost] = useState(CHILDREN_MAX);
  const label = name === undefined ? "" : `${visible(name)}: `;
  if (typeof value !== "object" || value === null)
    return (
      <div className="pl-4">
        <span className="text-ink2">{label}</span>
        {typeof value === "string" ? <Text of={value} /> : <span className="text-accent">{String(value)}</span>}
      </div>
    );
  const entries = Object.entries(value);
  const size = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  return (
    <div className={depth ? "pl-4" : ""}>
      <button type="button" aria-expanded={open} className="hover:bg-bg3 rounded" onClick={() => setOpen(!open)}>
        <span aria-hidden>{open ? "▾ " : "▸ "}</span>
        <span className="text-ink2">{label}</span>
        {size}
      </button>
      {open && entries.slice(0, most).map(([key, child]) => <Branch key={key} name={key} value={child} depth={depth + 1} />)}
      {open && entries.length > most && (
        <button type="button" className="button ml-4" onClick={() => setMost(most * 5)}>
          {entries.length - most} more
        </button>
      )}
    </div>
  );
}
