import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useMemo } from "react";
import { answered, api } from "../api/client";
import { serverNow } from "../api/clock";
import { useProjects } from "../api/server";
import { Chart } from "../frame/Chart";
import { Empty, Pending, Title } from "../frame/parts";
import { count, dollars, duration, visible } from "../frame/words";
import { RANGES, rangeOf } from "../traces/filters";

const GROUPS = {
  name: { name: "Node or run name", by: { attribute: "name" } },
  model: { name: "Model", by: { attribute: "metadata", path: "ls_model_name" } },
  kind: { name: "Kind of run", by: { attribute: "run_type" } },
  tag: { name: "Tag", by: { attribute: "tag" } },
  revision: { name: "Revision", by: { attribute: "metadata", path: "langgraph_host_revision_id" } },
} as const;
type Group = keyof typeof GROUPS;
type Stats = Record<string, number | null>;
const SELECT = ["run_count", "error_rate", "latency_p50", "latency_p99", "first_token_p50", "total_tokens", "total_cost"] as const;

/** What runs of a project add up to, by what they have in common. */
export function DashboardsPage() {
  const search = useSearch({ from: "/o/$ws/dashboards" });
  const navigate = useNavigate({ from: "/o/$ws/dashboards" });
  const projects = useProjects();
  const project = search.project ?? projects.data?.[0]?.id;
  const by = (search.by && search.by in GROUPS ? search.by : "name") as Group;
  const range = rangeOf(search);
  const seconds = RANGES[range];
  const since = seconds ? new Date(Math.floor((serverNow() - seconds * 1000) / 60_000) * 60_000).toISOString() : undefined;
  const stats = useQuery({
    queryKey: ["groups", project, by, since],
    enabled: !!project,
    queryFn: () =>
      answered(
        api.POST("/api/v1/runs/stats", {
          body: { session: [project as string], start_time: since, select: [...SELECT], group_by: { ...GROUPS[by].by, max_groups: 50 } },
        }),
      ) as Promise<Record<string, Stats>>,
  });
  const groups = Object.entries(stats.data ?? {});
  const most = Math.max(1, ...groups.map(([, each]) => each.run_count ?? 0));
  return (
    <>
      <Title
        actions={
          <>
            <select className="input" aria-label="Project" value={project ?? ""} onChange={(event) => navigate({ search: (old) => ({ ...old, project: event.target.value }) })}>
              {projects.data?.map((each) => <option key={each.id} value={each.id}>{each.name}</option>)}
            </select>
            <select className="input" aria-label="Time" value={range} onChange={(event) => navigate({ search: (old) => ({ ...old, range: event.target.value }) })}>
              {Object.keys(RANGES).map((each) => <option key={each} value={each}>{each === "all" ? "All time" : `Last ${each}`}</option>)}
            </select>
            <select className="input" aria-label="Group by" value={by} onChange={(event) => navigate({ search: (old) => ({ ...old, by: event.target.value }) })}>
              {Object.entries(GROUPS).map(([id, each]) => <option key={id} value={id}>{each.name}</option>)}
            </select>
          </>
        }
      >
        Dashboards
      </Title>
      {projects.data?.length === 0 ? (
        <Empty title="No runs yet" />
      ) : !stats.data ? (
        <Pending query={stats} what="statistics" />
      ) : groups.length === 0 ? (
        <Empty title="No run of this time has a value to be grouped by" />
      ) : (
        <section className="overflow-auto" aria-label="Statistics">
          <Series project={project as string} since={since} />
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls has to be reached by keyboard */}
          <table className="plain" tabIndex={0}>
            <thead>
              <tr>
                {[GROUPS[by].name, "Runs", "Failed", "p50", "p99", "First token", "Tokens", "Cost"].map((name) => <th key={name} scope="col">{name}</th>)}
              </tr>
            </thead>
            <tbody>
              {groups.map(([name, each]) => (
                <tr key={name}>
                  <td className="max-w-72 truncate">{visible(name)}</td>
                  <td className="min-w-32">
                    {count(each.run_count)}
                    <div className="h-1 bg-accent rounded-sm" style={{ width: `${(100 * (each.run_count ?? 0)) / most}%` }} />
                  </td>
                  <td className={each.error_rate ? "text-bad" : ""}>{each.error_rate == null ? "–" : `${(each.error_rate * 100).toFixed(1)} %`}</td>
                  <td className="whitespace-nowrap">{duration(each.latency_p50)}</td>
                  <td className="whitespace-nowrap">{duration(each.latency_p99)}</td>
                  <td className="whitespace-nowrap">{duration(each.first_token_p50)}</td>
                  <td>{count(each.total_tokens)}</td>
                  <td>{dollars(each.total_cost)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </>
  );
}

const OVER_TIME = ["run_count", "error_rate", "latency_p50", "latency_p99", "first_token_p50", "total_tokens", "total_cost"] as const;

/** The same over time: traces, how long they took, and what they used. */
function Series({ project, since }: { project: string; since: string | undefined }) {
  const series = useQuery({
    queryKey: ["series", project, since],
    queryFn: ({ signal }) =>
      answered(
        api.POST("/api/v1/runs/stats/series", { body: { session: [project], is_root: true, start_time: since, buckets: 60, select: [...OVER_TIME] }, signal }),
      ),
    placeholderData: (before) => before,
  });
  const charts = useMemo(() => chartsOf(series.data?.buckets ?? []), [series.data]);
  if (!series.data) return <Pending query={series} what="figures over time" />;
  return <div className="grid gap-3 p-3 grid-cols-1 lg:grid-cols-2">{charts.map((each) => <Chart key={each.title} {...each} />)}</div>;
}

type Bucket = { start_time?: string } & Partial<Record<(typeof OVER_TIME)[number], number | null>>;

function chartsOf(buckets: Bucket[]) {
  const times = buckets.map((each) => each.start_time ?? "");
  const sum = (name: (typeof OVER_TIME)[number]) => buckets.reduce((all, each) => all + (each[name] ?? 0), 0);
  const most = (name: (typeof OVER_TIME)[number]) => Math.max(0, ...buckets.map((each) => each[name] ?? 0));
  const failed = buckets.map((each) => Math.round((each.run_count ?? 0) * (each.error_rate ?? 0)));
  const all = (name: (typeof OVER_TIME)[number]) => buckets.map((each) => each[name]);
  const bad = failed.reduce((one, other) => one + other, 0);
  return [
    {
      title: "Traces", words: `${count(sum("run_count"))}, ${count(bad)} of them failed`, times, format: count,
      lines: [{ name: "Traces", colour: "--accent", values: all("run_count"), fill: true }, { name: "Failed", colour: "--bad", values: failed, fill: true }],
    },
    {
      title: "Took", words: `at most ${duration(most("latency_p99"))} at p99`, times, format: duration,
      lines: [
        { name: "p50", colour: "--accent", values: all("latency_p50") },
        { name: "p99", colour: "--k-tool", values: all("latency_p99") },
        { name: "First token p50", colour: "--k-llm", values: all("first_token_p50") },
      ],
    },
    { title: "Tokens", words: count(sum("total_tokens")), times, format: count, lines: [{ name: "Tokens", colour: "--accent", values: all("total_tokens"), fill: true }] },
    { title: "Cost", words: dollars(sum("total_cost")), times, format: dollars, lines: [{ name: "Cost", colour: "--good", values: all("total_cost"), fill: true }] },
  ];
}
