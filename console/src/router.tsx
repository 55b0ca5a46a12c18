import { createRootRoute, createRoute, createRouter, lazyRouteComponent, redirect } from "@tanstack/react-router";
import { queries, Refusal } from "./api/client";
import { callerQuery, serverKind } from "./api/server";
import { Frame } from "./frame/Frame";
import { Empty, Problem } from "./frame/parts";
import { LoginPage } from "./login/Login";

const root = createRootRoute({
  notFoundComponent: () => <Empty title="There is no page at this address" />,
});

/** Where to go after signing in: a page of ours, never another site. */
export const safeNext = (next: unknown) =>
  typeof next === "string" && /^\/o\/[^/\\]/.test(next) && !next.includes("\\") ? next : "/";

async function callerOrLogin(next: string) {
  try {
    return await queries.ensureQueryData(callerQuery);
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) throw redirect({ to: "/login", search: { next } });
    throw error;
  }
}

const start = createRoute({
  getParentRoute: () => root,
  path: "/",
  beforeLoad: async () => {
    if ((await serverKind()) === "agent") throw redirect({ to: "/o/$ws/playground", params: { ws: "-" }, search: {} });
    const caller = await callerOrLogin("/");
    throw redirect({ to: "/o/$ws", params: { ws: caller.workspace_id } });
  },
  errorComponent: ({ error }) => <Problem error={error} again={() => location.reload()} />,
});

const login = createRoute({
  getParentRoute: () => root,
  path: "/login",
  validateSearch: (search: Record<string, unknown>): { next?: string } => ({ next: search.next ? safeNext(search.next) : undefined }),
  component: LoginPage,
});

const workspace = createRoute({
  getParentRoute: () => root,
  path: "/o/$ws",
  beforeLoad: async ({ location, params }) => {
    if (params.ws !== "-") await callerOrLogin(location.href);
  },
  component: Frame,
  errorComponent: ({ error }) => <Problem error={error} again={() => location.reload()} />,
});

export type TracesSearch = {
  filter?: string;
  text?: string;
  range?: string;
  from?: string;
  to?: string;
  kind?: "roots" | "all";
  status?: "error" | "success" | "pending";
  cols?: string;
  live?: boolean;
};
const text = (value: unknown) => (value == null || value === "" ? undefined : String(value));

const home = createRoute({
  getParentRoute: () => workspace,
  path: "/",
  component: lazyRouteComponent(() => import("./home/Home"), "HomePage"),
});
const projects = createRoute({
  getParentRoute: () => workspace,
  path: "/projects",
  component: lazyRouteComponent(() => import("./traces/Projects"), "ProjectsPage"),
});
const traces = createRoute({
  getParentRoute: () => workspace,
  path: "/projects/p/$project",
  validateSearch: (search: Record<string, unknown>): TracesSearch => ({
    filter: text(search.filter),
    text: text(search.text),
    range: text(search.range),
    from: text(search.from),
    to: text(search.to),
    kind: search.kind === "all" ? "all" : undefined,
    status: ["error", "success", "pending"].includes(String(search.status)) ? (search.status as "error") : undefined,
    cols: text(search.cols),
    live: search.live ? true : undefined,
  }),
  component: lazyRouteComponent(() => import("./traces/Traces"), "TracesPage"),
});
const run = createRoute({
  getParentRoute: () => workspace,
  path: "/projects/p/$project/r/$run",
  validateSearch: (search: Record<string, unknown>): { trace_id?: string } => ({ trace_id: text(search.trace_id) }),
  component: lazyRouteComponent(() => import("./traces/Run"), "RunPage"),
});
const threads = createRoute({
  getParentRoute: () => workspace,
  path: "/threads",
  validateSearch: (search: Record<string, unknown>): { project?: string; thread?: string; agent?: string } => ({
    project: text(search.project),
    thread: text(search.thread),
    agent: text(search.agent),
  }),
  component: lazyRouteComponent(() => import("./threads/Threads"), "ThreadsPage"),
});
const dashboards = createRoute({
  getParentRoute: () => workspace,
  path: "/dashboards",
  validateSearch: (search: Record<string, unknown>): { project?: string; range?: string; by?: string } => ({
    project: text(search.project),
    range: text(search.range),
    by: text(search.by),
  }),
  component: lazyRouteComponent(() => import("./dashboards/Dashboards"), "DashboardsPage"),
});
const playground = createRoute({
  getParentRoute: () => workspace,
  path: "/playground",
  validateSearch: (search: Record<string, unknown>): PlaygroundSearch => ({
    agent: text(search.agent),
    assistant: text(search.assistant),
    thread: text(search.thread),
    checkpoint: text(search.checkpoint),
  }),
  component: lazyRouteComponent(() => import("./playground/Playground"), "PlaygroundPage"),
});
export type PlaygroundSearch = { agent?: string; assistant?: string; thread?: string; checkpoint?: string };
const deployments = createRoute({
  getParentRoute: () => workspace,
  path: "/deployments",
  component: lazyRouteComponent(() => import("./deployments/Deployments"), "DeploymentsPage"),
});
const exports_ = createRoute({
  getParentRoute: () => workspace,
  path: "/exports",
  component: lazyRouteComponent(() => import("./exports/Exports"), "ExportsPage"),
});
const settings = createRoute({
  getParentRoute: () => workspace,
  path: "/settings",
  component: lazyRouteComponent(() => import("./settings/Settings"), "SettingsPage"),
});

export const router = createRouter({
  routeTree: root.addChildren([
    start,
    login,
    workspace.addChildren([home, projects, traces, run, threads, dashboards, playground, deployments, exports_, settings]),
  ]),
  defaultPendingComponent: () => <p role="status" className="p-4 text-ink2">Loading the page …</p>,
  defaultErrorComponent: ({ error }) => <Problem error={error} again={() => location.reload()} />,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
