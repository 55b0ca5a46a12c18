import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { answered, api } from "../api/client";
import { useProjects } from "../api/server";
import { Empty, Pending, Time, Title } from "../frame/parts";
import { count, dollars, visible } from "../frame/words";

type Thread = { thread_id: string; count: number; max_start_time: string; first_inputs?: string; last_outputs?: string; num_errored_turns?: number; total_tokens?: number; total_cost?: number };
type Turn = { trace_id: string; start_time: string; inputs_preview?: string; outputs_preview?: string; error_preview?: string };

const EVER = "2000-01-01T00:00:00Z";

/** Threads of a project as their traces tell of them; and the turns of one. */
export function ThreadsPage() {
  const { ws } = useParams({ from: "/o/$ws/threads" });
  const search = useSearch({ from: "/o/$ws/threads" });
  const navigate = useNavigate({ from: "/o/$ws/threads" });
  const projects = useProjects();
  const project = search.project ?? projects.data?.[0]?.id;
  const threads = useQuery({
    queryKey: ["threads", project],
    enabled: !!project,
    queryFn: () => answered(api.POST("/v2/threads/query", { body: { project_id: project as string, min_start_time: EVER, page_size: 100 } })),
  });
  const found = threads.data?.items as Thread[] | undefined;
  return (
    <>
      <Title
        actions={
          <select className="input" aria-label="Project" value={project ?? ""} onChange={(event) => navigate({ search: { project: event.target.value } })}>
            {projects.data?.map((each) => <option key={each.id} value={each.id}>{each.name}</option>)}
          </select>
        }
      >
        Threads
      </Title>
      {projects.data?.length === 0 ? (
        <Empty title="No threads yet"><p>Runs that name a thread_id in their metadata appear here together.</p></Empty>
      ) : !found ? (
        <Pending query={threads} what="threads" />
      ) : (
        <div className="flex-1 min-h-0 grid grid-cols-1 lg:grid-cols-2 grid-rows-[minmax(8rem,1fr)_minmax(0,1fr)] lg:grid-rows-1">
          <section className="overflow-auto" aria-label="Threads">
            {found.length === 0 && <Empty title="No run of this project names a thread" />}
            <ul>
              {found.map((thread) => (
                <li key={thread.thread_id} className={`border-b border-line px-4 py-2 ${thread.thread_id === search.thread ? "bg-accentbg" : ""}`}>
                  <Link to="/o/$ws/threads" params={{ ws }} search={{ project, thread: thread.thread_id }} className="font-mono text-xs break-all">
                    {visible(thread.thread_id)}
                  </Link>
                  <p className="truncate">{visible(thread.first_inputs ?? "")} → {visible(thread.last_outputs ?? "")}</p>
                  <p className="text-ink2 flex flex-wrap gap-3">
                    <span>{count(thread.count)} turns</span>
                    {!!thread.num_errored_turns && <span className="text-bad">{thread.num_errored_turns} failed</span>}
                    <span>{count(thread.total_tokens)} tokens</span>
                    <span>{dollars(thread.total_cost)}</span>
                    <Time at={thread.max_start_time} />
                  </p>
                </li>
              ))}
            </ul>
          </section>
          <section className="overflow-auto border-t lg:border-t-0 lg:border-l border-line" aria-label="Turns">
            {search.thread && project ? <Turns ws={ws} project={project} thread={search.thread} /> : <p className="p-4 text-ink2">Choose a thread.</p>}
          </section>
        </div>
      )}
    </>
  );
}

function Turns({ ws, project, thread }: { ws: string; project: string; thread: string }) {
  const turns = useQuery({
    queryKey: ["turns", project, thread],
    queryFn: () =>
      answered(
        api.GET("/v2/threads/{thread_id}/traces", {
          params: { path: { thread_id: thread }, query: { project_id: project, page_size: 100, selects: ["TRACE_ID", "START_TIME", "INPUTS_PREVIEW", "OUTPUTS_PREVIEW", "ERROR_PREVIEW"] } },
        }),
      ),
  });
  if (!turns.data) return <Pending query={turns} what="turns" />;
  const items = [...(turns.data.items as Turn[])].sort((a, b) => a.start_time.localeCompare(b.start_time));
  return (
    <ol className="p-3 flex flex-col gap-2">
      {items.map((turn) => (
        <li key={turn.trace_id} className="flex flex-col gap-1">
          <p className="panel bg-accentbg p-2 whitespace-pre-wrap break-words">{visible(turn.inputs_preview ?? "")}</p>
          <p className={`panel p-2 whitespace-pre-wrap break-words ${turn.error_preview ? "bg-badbg text-bad" : "bg-bg2"}`}>
            {visible(turn.error_preview ?? turn.outputs_preview ?? "…")}
          </p>
          <p className="text-ink2">
            <Link to="/o/$ws/projects/p/$project/r/$run" params={{ ws, project, run: turn.trace_id }} search={{ trace_id: turn.trace_id }}>Its trace</Link>{" "}
            · <Time at={turn.start_time} />
          </p>
        </li>
      ))}
    </ol>
  );
}
