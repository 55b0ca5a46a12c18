import * as Menu from "@radix-ui/react-dropdown-menu";
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { Columns3, Download, Pause, Radio } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import { answered, api, Refusal } from "../api/client";
import { serverNow } from "../api/clock";
import { projectQuery } from "../api/server";
import { AsCode } from "../frame/AsCode";
import { Empty, Pending, Problem, Snippet, State, Time, Title } from "../frame/parts";
import { count, dollars, duration, visible } from "../frame/words";
import type { TracesSearch } from "../router";
import { COLUMNS, columnsOf, type Column, type Run, SELECT, secondsOf } from "./columns";
import { Filters } from "./Filters";
import { bodyOf, filterOf } from "./filters";
import { Histogram } from "./Histogram";
import { Kind } from "./Kind";
import { CONNECT } from "./Projects";
import { useTail } from "./tail";

const ROW_PX = 34;

export function TracesPage() {
  const { ws, project } = useParams({ from: "/o/$ws/projects/p/$project" });
  const search = useSearch({ from: "/o/$ws/projects/p/$project" });
  const navigate = useNavigate({ from: "/o/$ws/projects/p/$project" });
  const [now, setNow] = useState(serverNow);
  const body = useMemo(() => bodyOf(project, search, now), [project, search, now]);
  const facts = useQuery(projectQuery(project));
  const pages = useInfiniteQuery({
    queryKey: ["runs", body],
    initialPageParam: null as string | null,
    queryFn: ({ pageParam, signal }) =>
      answered(
        api.POST("/api/v1/runs/query", {
          body: { ...body, limit: 100, select: [...SELECT], cursor: pageParam, skip_prev_cursor: true },
          signal,
        }),
      ),
    getNextPageParam: (page) => page.cursors.next,
    placeholderData: (before) => before,
  });
  const tail = useTail(body, search.live === true);
  const runs = useMemo(() => {
    const listed = pages.data?.pages.flatMap((page) => page.runs) ?? [];
    const known = new Set(tail.runs.map((run) => run.id));
    return [...tail.runs, ...listed.filter((run) => !known.has(run.id))];
  }, [pages.data, tail.runs]);
  const change = (next: Partial<TracesSearch>) => {
    setNow(serverNow());
    void navigate({ search: (old) => ({ ...old, ...next }), replace: true });
  };
  if (facts.error instanceof Refusal) return <Problem error={facts.error} />;
  const filter = filterOf(search);
  const cli = `moorage traces list --project ${JSON.stringify(facts.data?.name ?? project)}${filter ? ` --filter '${filter.replaceAll("'", "'\\''")}'` : ""}`;
  return (
    <>
      <Title
        actions={
          <>
            <button type="button" className="button" aria-pressed={!!search.live} onClick={() => change({ live: search.live ? undefined : true })}>
              {search.live ? <Pause size={14} aria-hidden /> : <Radio size={14} aria-hidden />} {search.live ? "Pause" : "Live"}
            </button>
            <ColumnsMenu chosen={search.cols} onChange={(cols) => change({ cols })} />
            <button type="button" className="button" onClick={() => download(runs)} disabled={!runs.length}>
              <Download size={14} aria-hidden /> JSON lines
            </button>
            <AsCode method="POST" path="/api/v1/runs/query" body={body} cli={cli} />
          </>
        }
      >
        <Link to="/o/$ws/projects" params={{ ws }}>Projects</Link> / {facts.data?.name ?? "…"}
      </Title>
      <Filters search={search} onChange={change} />
      <Histogram body={body} live={search.live === true} onChoose={(from, to) => change({ from, to })} />
      {search.live && (
        <p role="status" className="px-4 py-1 text-ink2 border-b border-line">
          {tail.words}
        </p>
      )}
      {pages.error ? (
        <Problem error={pages.error} again={() => pages.refetch()} />
      ) : !pages.data ? (
        <Pending query={pages} what="runs" />
      ) : runs.length === 0 ? (
        <Empty title="No run of this time meets these conditions">
          <p>Choose a longer time, or remove a condition. To send runs to this project:</p>
          <Snippet>{CONNECT.replace("my-agent", facts.data?.name ?? "my-agent")}</Snippet>
        </Empty>
      ) : (
        <Table runs={runs} columns={columnsOf(search.cols)} ws={ws} project={project} more={pages.hasNextPage && !pages.isFetchingNextPage ? pages.fetchNextPage : undefined} />
      )}
      <footer className="px-4 py-1 border-t border-line text-ink2" aria-live="polite">
        {count(runs.length)} shown{pages.hasNextPage ? "; more below" : ""}
        {pages.isFetching ? "; loading …" : ""}
      </footer>
    </>
  );
}

type TableProps = { runs: Run[]; columns: Column[]; ws: string; project: string; more?: () => unknown };

function Table({ runs, columns, ws, project, more }: TableProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const navigate = useNavigate();
  const [at, setAt] = useState(0);
  const rows = useVirtualizer({ count: runs.length, getScrollElement: () => scroller.current, estimateSize: () => ROW_PX, overscan: 12 });
  const shown = rows.getVirtualItems();
  const last = shown.at(-1)?.index ?? 0;
  useEffect(() => {
    if (more && last > runs.length - 30) more();
  }, [last, runs.length, more]);
  const template = columns.map((column) => column.width).join(" ");
  const step = (to: number) => {
    const index = Math.max(0, Math.min(runs.length - 1, to));
    setAt(index);
    rows.scrollToIndex(index);
  };
  return (
    <div
      ref={scroller}
      className="flex-1 min-h-40 overflow-auto relative"
      role="grid"
      aria-label="Runs"
      aria-rowcount={runs.length + 1}
      tabIndex={0}
      onKeyDown={(event) => {
        const run = runs[at];
        if (event.key === "ArrowDown" || event.key === "j") step(at + 1);
        else if (event.key === "ArrowUp" || event.key === "k") step(at - 1);
        else if (event.key === "Enter" && run && event.target === scroller.current)
          void navigate({ to: "/o/$ws/projects/p/$project/r/$run", params: { ws, project, run: run.id as string }, search: { trace_id: run.trace_id } });
        else return;
        event.preventDefault();
      }}
    >
      <div role="row" aria-rowindex={1} className="grid sticky top-0 bg-bg2 border-b border-line text-ink2 font-medium z-10 w-max min-w-full" style={{ gridTemplateColumns: template }}>
        {columns.map((column) => (
          <div key={column.id} role="columnheader" className="cell py-1.5">
            {column.name}
          </div>
        ))}
      </div>
      <div role="rowgroup" style={{ height: rows.getTotalSize(), position: "relative" }} className="w-max min-w-full">
        {shown.map((item) => {
          const run = runs[item.index] as Run;
          return (
            <div
              key={run.id}
              role="row"
              aria-rowindex={item.index + 2}
              aria-selected={item.index === at}
              className={`grid items-center absolute left-0 right-0 border-b border-line hover:bg-bg2 ${item.index === at ? "bg-accentbg" : ""}`}
              style={{ gridTemplateColumns: template, height: ROW_PX, transform: `translateY(${item.start}px)` }}
              onMouseDown={() => setAt(item.index)}
            >
              {columns.map((column) => (
                <div key={column.id} role="gridcell" className="cell">
                  <Cell run={run} column={column.id} ws={ws} project={project} />
                </div>
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}

function Cell({ run, column, ws, project }: { run: Run; column: string; ws: string; project: string }) {
  switch (column) {
    case "state":
      return <State of={run.status ?? "pending"} bare />;
    case "name":
      return (
        <span className="inline-flex items-center gap-1.5 max-w-full">
          <Kind of={run.run_type ?? "chain"} />
          <Link
            tabIndex={-1}
            className="truncate"
            to="/o/$ws/projects/p/$project/r/$run"
            params={{ ws, project, run: run.id as string }}
            search={{ trace_id: run.trace_id }}
          >
            {visible(run.name || "(no name)")}
          </Link>
        </span>
      );
    case "input":
      return <>{visible(run.inputs_preview ?? "")}</>;
    case "output":
      return run.error ? <span className="text-bad">{visible(run.error.slice(0, 300))}</span> : <>{visible(run.outputs_preview ?? "")}</>;
    case "start":
      return <Time at={run.start_time} />;
    case "latency":
      return <>{duration(secondsOf(run))}</>;
    case "first":
      return <>{duration(secondsOf({ start_time: run.start_time, end_time: run.first_token_time }))}</>;
    case "tokens":
      return <>{run.total_tokens ? count(run.total_tokens) : "–"}</>;
    case "cost":
      return <>{dollars(run.total_cost)}</>;
    case "tags":
      return <>{(run.tags ?? []).map(visible).join(", ")}</>;
    case "thread":
      return run.thread_id ? (
        <Link tabIndex={-1} to="/o/$ws/threads" params={{ ws }} search={{ project, thread: run.thread_id }}>
          {visible(run.thread_id)}
        </Link>
      ) : null;
    case "feedback":
      return (
        <>
          {Object.entries(run.feedback_stats ?? {})
            .map(([key, stat]) => `${visible(key)} ${stat.avg ?? stat.n}`)
            .join(", ")}
        </>
      );
    default:
      return null;
  }
}

function ColumnsMenu({ chosen, onChange }: { chosen?: string; onChange: (cols: string | undefined) => void }) {
  const ids = columnsOf(chosen).map((column) => column.id);
  return (
    <Menu.Root>
      <Menu.Trigger className="button">
        <Columns3 size={14} aria-hidden /> Columns
      </Menu.Trigger>
      <Menu.Portal>
        <Menu.Content className="panel shadow-lg p-1 z-20" align="end">
          {COLUMNS.map((column) => (
            <Menu.CheckboxItem
              key={column.id}
              className="px-3 py-1 rounded data-[highlighted]:bg-accentbg flex gap-2 outline-none"
              checked={ids.includes(column.id)}
              onSelect={(event) => event.preventDefault()}
              onCheckedChange={(on) => onChange((on ? [...ids, column.id] : ids.filter((id) => id !== column.id)).join(",") || undefined)}
            >
              <span className="w-4">
                <Menu.ItemIndicator>✓</Menu.ItemIndicator>
              </span>
              {column.name}
            </Menu.CheckboxItem>
          ))}
        </Menu.Content>
      </Menu.Portal>
    </Menu.Root>
  );
}

function download(runs: Run[]) {
  const lines = runs.map((run) => `${JSON.stringify(run)}\n`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
  link.download = "runs.jsonl";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
