import { Check, CircleAlert, CircleCheck, CircleDashed, Copy, Inbox } from "lucide-react";
import { type ReactNode, useState } from "react";
import { Refusal } from "../api/client";
import { ago, exact } from "./words";

export function Title({ children, actions }: { children: ReactNode; actions?: ReactNode }) {
  return (
    <header className="flex flex-wrap items-center gap-2 px-4 py-3 border-b border-line">
      <h1 className="text-[15px] font-semibold mr-auto min-w-0 truncate">{children}</h1>
      {actions}
    </header>
  );
}

export function Time({ at }: { at: string | null | undefined }) {
  return (
    <time dateTime={at ?? undefined} title={exact(at)}>
      {ago(at)}
    </time>
  );
}

const STATES = {
  success: { icon: CircleCheck, tone: "text-good" },
  error: { icon: CircleAlert, tone: "text-bad" },
  pending: { icon: CircleDashed, tone: "text-wait" },
};

/** A state, by its icon and its word: never by its colour alone. */
export function State({ of, bare = false }: { of: string; bare?: boolean }) {
  const word = of.toLowerCase();
  const kind = /error|fail|timeout|timedout|^down$/.test(word)
    ? STATES.error
    : /success|deployed|completed|idle|ready/.test(word)
      ? STATES.success
      : STATES.pending;
  return (
    <span className={`inline-flex items-center gap-1 ${kind.tone}`} title={bare ? word : undefined}>
      <kind.icon size={14} aria-hidden />
      <span className={bare ? "sr-only" : ""}>{word.replaceAll("_", " ")}</span>
    </span>
  );
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [done, setDone] = useState(false);
  return (
    <button
      type="button"
      className="inline-flex items-center text-ink3 hover:text-ink"
      aria-label={`Copy ${label}`}
      title={`Copy ${label}`}
      onClick={async () => {
        await navigator.clipboard?.writeText(text);
        setDone(true);
        setTimeout(() => setDone(false), 1500);
      }}
    >
      {done ? <Check size={13} aria-hidden /> : <Copy size={13} aria-hidden />}
    </button>
  );
}

export function Id({ value, label = "id" }: { value: string; label?: string }) {
  return (
    <span className="inline-flex items-center gap-1 font-mono text-xs">
      <span title={value}>{value.length > 13 ? `${value.slice(0, 8)}…` : value}</span>
      <CopyButton text={value} label={label} />
    </span>
  );
}

export function Snippet({ children }: { children: string }) {
  return (
    <div className="relative panel bg-bg2 p-3 my-2 text-left max-w-full">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls has to be reached by keyboard */}
      <pre className="font-mono text-xs overflow-x-auto pr-6" tabIndex={0}>{children}</pre>
      <span className="absolute top-2 right-2">
        <CopyButton text={children} label="snippet" />
      </span>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="m-auto w-full min-w-0 max-w-2xl p-6 text-center text-ink2">
      <Inbox className="mx-auto mb-2" size={28} aria-hidden />
      <p className="font-medium text-ink">{title}</p>
      {children}
    </div>
  );
}

export function Waiting({ what }: { what: string }) {
  return (
    <p role="status" className="p-4 text-ink2">
      Loading {what} …
    </p>
  );
}

export function Problem({ error, again }: { error: unknown; again?: () => void }) {
  const status = error instanceof Refusal ? error.status : -1;
  // A workspace that is not ours and one that does not exist look the same.
  const missing = [403, 404].includes(status);
  return (
    <div role="alert" className="m-4 p-3 rounded border border-bad bg-badbg max-w-2xl">
      <p className="font-medium">{missing ? "There is nothing here that you may see" : "That did not work"}</p>
      <p className="text-ink2 mt-1 break-words">
        {missing ? "It may not exist, or your key does not open it." : String((error as Error)?.message ?? error)}
      </p>
      {again && (
        <button type="button" className="button mt-2" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

/** What stands for a query until it has data. */
export function Pending({ query, what }: { query: { error: unknown; refetch: () => void; failureReason: unknown }; what: string }) {
  if (query.error) return <Problem error={query.error} again={query.refetch} />;
  if (query.failureReason) return <p role="status" className="p-4 text-ink2">{String((query.failureReason as Error).message)}</p>;
  return <Waiting what={what} />;
}
