import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { ChevronDown, ChevronRight, ThumbsDown, ThumbsUp } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import { answered, api } from "../api/client";
import { serverNow } from "../api/clock";
import { projectQuery } from "../api/server";
import { AsCode } from "../frame/AsCode";
import { Json } from "../frame/Json";
import { Id, Pending, Problem, State, Time, Title } from "../frame/parts";
import { count, dollars, duration, visible } from "../frame/words";
import { colourOf, Kind } from "./Kind";
import { Messages } from "./Messages";
import { messagesOf } from "./messages";
import { type Node, rowsOf, type Sent, spanOf, treeOf } from "./tree";

const ROW_PX = 30;
const SELECTS = ["ID", "NAME", "RUN_TYPE", "STATUS", "START_TIME", "END_TIME", "FIRST_TOKEN_TIME", "PARENT_RUN_IDS", "TOTAL_TOKENS", "TOTAL_COST"] as const;

export function RunPage() {
  const { ws, project, run } = useParams({ from: "/o/$ws/projects/p/$project/r/$run" });
  const { trace_id } = useSearch({ from: "/o/$ws/projects/p/$project/r/$run" });
  const facts = useQuery(projectQuery(project));
  const chosen = useQuery({
    queryKey: ["run", run],
    queryFn: () => answered(api.GET("/api/v1/runs/{run_id}", { params: { path: { run_id: run }, query: { session_id: project } } })),
    placeholderData: (before) => before,
    refetchInterval: (query) => (query.state.data?.status === "pending" ? 2_000 : false),
  });
  const trace = trace_id ?? (chosen.data?.id === run ? chosen.data.trace_id : undefined);
  const runs = useQuery({
    queryKey: ["trace", project, trace],
    enabled: !!trace,
    queryFn: () =>
      answered(
        api.GET("/v2/traces/{trace_id}/runs", {
          params: { path: { trace_id: trace as string }, query: { project_id: project, selects: [...SELECTS] } },
        }),
      ),
    refetchInterval: (query) => ((query.state.data?.items as Sent[] | undefined)?.some((each) => each.status === "PENDING") ? 2_000 : false),
  });
  if (chosen.error) return <Problem error={chosen.error} />;
  const path = `/v2/traces/${trace}/runs?project_id=${project}&selects=ID&selects=NAME&selects=STATUS`;
  return (
    <>
      <Title actions={<AsCode method="GET" path={path} cli={`moorage traces get ${trace}`} />}>
        <Link to="/o/$ws/projects" params={{ ws }}>Projects</Link> /{" "}
        <Link to="/o/$ws/projects/p/$project" params={{ ws, project }} search={{}}>
          {facts.data?.name ?? "…"}
        </Link>{" "}
        / {visible(chosen.data?.name ?? "run")}
      </Title>
      <div className="flex-1 min-h-0 grid grid-cols-1 grid-rows-[minmax(10rem,2fr)_minmax(0,3fr)] lg:grid-rows-1 lg:grid-cols-[minmax(20rem,1fr)_minmax(0,1fr)]">
        {runs.data ? <Tree sent={runs.data.items as Sent[]} at={run} /> : <Pending query={runs} what="the trace" />}
        <div className="overflow-auto border-t lg:border-t-0 lg:border-l border-line p-3" aria-label="Chosen run" role="region" tabIndex={0}>
          {chosen.data ? <Details run={chosen.data} ws={ws} project={project} /> : <Pending query={chosen} what="the run" />}
        </div>
      </div>
    </>
  );
}

/** Tree and waterfall of a trace, in one grid of which only the visible rows exist. */
function Tree({ sent, at }: { sent: Sent[]; at: string }) {
  const navigate = useNavigate({ from: "/o/$ws/projects/p/$project/r/$run" });
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set());
  const roots = useMemo(() => treeOf(sent), [sent]);
  const rows = useMemo(() => rowsOf(roots, closed), [roots, closed]);
  const [begin, end] = useMemo(() => spanOf(rowsOf(roots, new Set()), serverNow()), [roots]);
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({ count: rows.length, getScrollElement: () => scroller.current, estimateSize: () => ROW_PX, overscan: 10 });
  const index = rows.findIndex((row) => row.id === at);
  // biome-ignore lint/correctness/useExhaustiveDependencies: where the chosen run stands when the trace is there
  useEffect(() => {
    if (index > 0) virtual.scrollToIndex(index, { align: "auto" });
  }, [at, roots]);
  const choose = (node: Node | undefined) => {
    if (node) void navigate({ params: (old) => ({ ...old, run: node.id }), search: (old) => old, replace: true });
  };
  const toggle = (node: Node, open: boolean) => {
    const next = new Set(closed);
    if (open) next.delete(node.id);
    else next.add(node.id);
    setClosed(next);
  };
  const chosen = rows[index];
  const percent = (time: number) => ((time - begin) / (end - begin)) * 100;
  return (
    <div
      ref={scroller}
      role="treegrid"
      aria-label="Runs of the trace"
      aria-rowcount={rows.length}
      tabIndex={0}
      className="overflow-auto min-h-0"
      onKeyDown={(event) => {
        if (event.key === "ArrowDown" || event.key === "j") choose(rows[index + 1]);
        else if (event.key === "ArrowUp" || event.key === "k") choose(rows[index - 1]);
        else if (event.key === "ArrowRight" && chosen) closed.has(chosen.id) ? toggle(chosen, true) : choose(chosen.children[0]);
        else if (event.key === "ArrowLeft" && chosen) chosen.children.length && !closed.has(chosen.id) ? toggle(chosen, false) : choose(chosen.parent ?? undefined);
        else return;
        event.preventDefault();
      }}
    >
      <div role="rowgroup" style={{ height: virtual.getTotalSize(), position: "relative" }}>
        {virtual.getVirtualItems().map((item) => {
          const row = rows[item.index] as Node;
          const left = percent(row.start);
          const until = row.end ?? (row.status === "pending" ? end : row.start);
          const width = Math.max(0.4, Math.abs(percent(until) - left));
          return (
            <div
              key={row.id}
              role="row"
              aria-level={row.depth + 1}
              aria-rowindex={item.index + 1}
              aria-selected={row.id === at}
              aria-expanded={row.children.length ? !closed.has(row.id) : undefined}
              className={`absolute left-0 right-0 grid grid-cols-[minmax(0,1fr)_40%] items-center border-b border-line cursor-pointer hover:bg-bg2 ${row.id === at ? "bg-accentbg" : ""}`}
              style={{ height: ROW_PX, transform: `translateY(${item.start}px)` }}
              onClick={() => choose(row)}
              onKeyDown={() => undefined}
            >
              <div role="gridcell" className="flex items-center gap-1.5 min-w-0" style={{ paddingLeft: Math.min(row.depth, 24) * 14 + 6 }}>
                <button
                  type="button"
                  tabIndex={-1}
                  aria-label={closed.has(row.id) ? "Open" : "Close"}
                  className={row.children.length ? "" : "invisible"}
                  onClick={(event) => {
                    event.stopPropagation();
                    toggle(row, closed.has(row.id));
                  }}
                >
                  {closed.has(row.id) ? <ChevronRight size={13} aria-hidden /> : <ChevronDown size={13} aria-hidden />}
                </button>
                <Kind of={row.kind} />
                <span className="truncate">{visible(row.name || "(no name)")}</span>
                {row.status !== "success" && <State of={row.status} bare />}
              </div>
              <div role="gridcell" className="relative h-full mr-2 text-[11px] text-ink2">
                <span className="absolute top-1 h-1.5 rounded-sm" style={{ left: `${Math.min(left, percent(until))}%`, width: `${width}%`, background: row.status === "error" ? "var(--bad)" : colourOf(row.kind) }} />
                {row.firstToken !== null && <span title="First token" className="absolute top-0.5 h-2.5 w-px bg-ink" style={{ left: `${percent(row.firstToken)}%` }} />}
                <span className="absolute bottom-0.5 right-0 leading-none whitespace-nowrap">
                  {duration(row.end === null ? null : (row.end - row.start) / 1000)}
                  {row.tokens ? ` · ${count(row.tokens)} tok` : ""}
                  {row.cost ? ` · ${dollars(row.cost)}` : ""}
                </span>
              </div>
            </div>
          );
        })}
      </div>
    </div>
  );
}

type Found = Awaited<ReturnType<typeof readRun>>;
const readRun = (run: string) => answered(api.GET("/api/v1/runs/{run_id}", { params: { path: { run_id: run } } }));

function Details({ run, ws, project }: { run: Found; ws: string; project: string }) {
  const metadata = ((run.extra as { metadata?: Record<string, unknown> } | null)?.metadata ?? {}) as Record<string, unknown>;
  const word = (name: string) => (typeof metadata[name] === "string" ? (metadata[name] as string) : undefined);
  const asked = messagesOf(run.inputs);
  const said = messagesOf(run.outputs);
  const thread = run.thread_id;
  const agent = word("LANGSMITH_HOST_PROJECT_NAME");
  const revision = word("LANGSMITH_HOST_REVISION_ID");
  return (
    <article className="flex flex-col gap-3">
      <header className="flex flex-wrap items-center gap-x-4 gap-y-1">
        <h2 className="font-semibold inline-flex items-center gap-1.5 min-w-0">
          <Kind of={run.run_type ?? "chain"} /> <span className="break-words min-w-0">{visible(run.name || "(no name)")}</span>
        </h2>
        <State of={run.status ?? "pending"} />
        <Time at={run.start_time} />
        <span>{run.start_time && run.end_time ? duration((Date.parse(run.end_time) - Date.parse(run.start_time)) / 1000) : "goes on"}</span>
        {!!run.total_tokens && <span>{count(run.total_tokens)} tokens</span>}
        {run.total_cost && <span>{dollars(run.total_cost)}</span>}
        <Id value={run.id as string} label="run id" />
      </header>
      <p className="flex flex-wrap gap-x-4 gap-y-1 text-ink2">
        {thread && (
          <Link to="/o/$ws/threads" params={{ ws }} search={{ project, thread }}>Thread {visible(thread)}</Link>
        )}
        {agent && (
          <Link to="/o/$ws/playground" params={{ ws }} search={{ agent, thread: thread ?? undefined, checkpoint: word("checkpoint_id") }}>
            Open in the playground
          </Link>
        )}
        {revision && <span>Revision {visible(revision)}</span>}
        {(run.tags ?? []).map((tag) => (
          <span key={tag} className="rounded bg-bg3 px-1.5">
            {visible(tag)}
          </span>
        ))}
      </p>
      <Feedback run={run} />
      {run.error && (
        <section aria-label="Error" className="rounded border border-bad bg-badbg p-2">
          <h3 className="font-medium text-bad">Error</h3>
          <pre className="font-mono text-xs whitespace-pre-wrap break-words">{visible(run.error.slice(0, 100_000))}</pre>
        </section>
      )}
      {(asked.length > 0 || said.length > 0) && (
        <section aria-label="Messages">
          <h3 className="font-medium mb-1">Messages</h3>
          <Messages of={sameStart(asked, said) ? said : [...asked, ...said]} />
        </section>
      )}
      <Json value={run.inputs ?? null} label="Input" />
      <Json value={run.outputs ?? null} label="Output" />
      <Json value={metadata} label="Metadata" />
      {!!run.events?.length && <Json value={run.events} label="Events" />}
    </article>
  );
}

/** Whether the output repeats the messages of the input, as graphs with a list of messages do. */
const sameStart = (asked: { text: string }[], said: { text: string }[]) =>
  said.length >= asked.length && asked.every((message, index) => message.text === said[index]?.text);

function Feedback({ run }: { run: Found }) {
  const client = useQueryClient();
  const give = useMutation({
    mutationFn: (score: number) =>
      answered(api.POST("/api/v1/feedback", { body: { run_id: run.id, key: "user_score", score, feedback_source: { type: "app" } } as never })),
    onSuccess: () => client.invalidateQueries({ queryKey: ["run", run.id] }),
  });
  return (
    <div className="flex flex-wrap items-center gap-2">
      <span className="text-ink2">Feedback</span>
      {Object.entries(run.feedback_stats ?? {}).map(([key, stat]) => (
        <span key={key} className="rounded bg-bg3 px-1.5">
          {visible(key)}: {stat.avg ?? Object.keys(stat.values).map(visible).join(", ")} ({stat.n})
        </span>
      ))}
      <button type="button" className="button" onClick={() => give.mutate(1)} disabled={give.isPending}>
        <ThumbsUp size={13} aria-hidden /> Good
      </button>
      <button type="button" className="button" onClick={() => give.mutate(0)} disabled={give.isPending}>
        <ThumbsDown size={13} aria-hidden /> Bad
      </button>
      {give.isSuccess && <span role="status">Thank you, it is stored.</span>}
      {give.error && <span role="alert" className="text-bad">{give.error.message}</span>}
    </div>
  );
}
