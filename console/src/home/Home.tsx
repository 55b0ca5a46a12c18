import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { answered, api } from "../api/client";
import { serverNow } from "../api/clock";
import { useProjects } from "../api/server";
import { Pending, Snippet, State, Time, Title } from "../frame/parts";
import { count, dollars, visible } from "../frame/words";
import { CONNECT } from "../traces/Projects";

const DAY_MS = 86_400_000;

export function HomePage() {
  const { ws } = useParams({ from: "/o/$ws/" });
  const health = useQuery({
    queryKey: ["health"],
    refetchInterval: 15_000,
    retry: false,
    queryFn: () => answered(api.GET("/api/v1/ok", { params: { query: { check_db: true } } })),
  });
  const disk = useQuery({ queryKey: ["disk"], queryFn: () => answered(api.GET("/api/v1/info/health")), refetchInterval: 60_000 });
  const projects = useProjects();
  const ids = (projects.data ?? []).map((project) => project.id);
  const since = new Date(Math.floor((serverNow() - DAY_MS) / 60_000) * 60_000).toISOString();
  const today = useQuery({
    queryKey: ["today", ids, since],
    enabled: ids.length > 0,
    queryFn: () =>
      answered(
        api.POST("/api/v1/runs/stats", {
          body: { session: ids, is_root: true, start_time: since, select: ["run_count", "error_rate", "latency_p50", "total_tokens", "total_cost"] },
        }),
      ) as Promise<Record<string, number | null>>,
  });
  const failed = useQuery({
    queryKey: ["failed", ids, since],
    enabled: ids.length > 0,
    queryFn: () =>
      answered(
        api.POST("/api/v1/runs/query", {
          body: { session: ids, is_root: true, error: true, start_time: since, limit: 8, select: ["id", "name", "error", "start_time", "session_id", "trace_id"] },
        }),
      ),
  });
  const free = disk.data?.clickhouse_disk_free_pct;
  const facts: [string, string][] = [
    ["Traces", count(today.data?.run_count ?? 0)],
    ["Failed", today.data?.error_rate == null ? "–" : `${(today.data.error_rate * 100).toFixed(1)} %`],
    ["Tokens", count(today.data?.total_tokens ?? 0)],
    ["Cost", dollars(today.data?.total_cost ?? 0)],
    ["Disk free", free == null ? "–" : `${free} %`],
  ];
  return (
    <>
      <Title>Home</Title>
      <div className="overflow-auto p-4 grid gap-4 lg:grid-cols-2 content-start">
        <section className="panel p-3 lg:col-span-2" aria-label="The last 24 hours">
          <h2 className="font-medium mb-2">The last 24 hours</h2>
          <dl className="flex flex-wrap gap-x-8 gap-y-2">
            {facts.map(([name, value]) => (
              <div key={name}>
                <dt className="text-ink2">{name}</dt>
                <dd className="text-lg font-semibold">{value}</dd>
              </div>
            ))}
            {Object.entries(health.data?.services ?? {}).map(([name, word]) => (
              <div key={name}>
                <dt className="text-ink2">{name}</dt>
                <dd className="mt-1">
                  <State of={word === "ok" ? "ready" : "failed"} />
                </dd>
              </div>
            ))}
          </dl>
          {health.error && <p role="alert" className="text-bad mt-2">{health.error.message}</p>}
          {free != null && free < 10 && <p role="alert" className="text-bad mt-2">The disk of the trace store is almost full: make room, or shorten the retention.</p>}
        </section>
        <section className="panel p-3" aria-label="Last failures">
          <h2 className="font-medium mb-2">Last failures</h2>
          {ids.length === 0 ? (
            <p className="text-ink2">No traces yet.</p>
          ) : !failed.data ? (
            <Pending query={failed} what="failures" />
          ) : failed.data.runs.length === 0 ? (
            <p className="text-ink2">Nothing has failed.</p>
          ) : (
            <ul className="flex flex-col gap-1">
              {failed.data.runs.map((run) => (
                <li key={run.id} className="flex gap-2 min-w-0">
                  <Link
                    className="shrink-0"
                    to="/o/$ws/projects/p/$project/r/$run"
                    params={{ ws, project: run.session_id as string, run: run.id as string }}
                    search={{ trace_id: run.trace_id }}
                  >
                    {visible(run.name || "run")}
                  </Link>
                  <span className="truncate text-bad">{visible((run.error ?? "").slice(0, 200))}</span>
                  <span className="ml-auto shrink-0 text-ink2">
                    <Time at={run.start_time} />
                  </span>
                </li>
              ))}
            </ul>
          )}
        </section>
        <section className="panel p-3 min-w-0" aria-label="Connect">
          <h2 className="font-medium">Send traces here</h2>
          <Snippet>{CONNECT}</Snippet>
          <h2 className="font-medium mt-3">Deploy an agent</h2>
          <Snippet>{`export MOORAGE_URL=${location.origin}\nexport MOORAGE_API_KEY=<your key>\nmoorage deploy`}</Snippet>
        </section>
      </div>
    </>
  );
}
