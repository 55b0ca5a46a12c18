import { useQuery } from "@tanstack/react-query";
import { api, answered } from "./client";

/** Who answers at this origin: the platform, or the agent server of `moorage dev`. */
export async function serverKind(): Promise<"platform" | "agent"> {
  const info = await answered(api.GET("/api/v1/info")).catch(() => null);
  return info && "batch_ingest_config" in info ? "platform" : "agent";
}

export const callerQuery = {
  queryKey: ["caller"],
  queryFn: () => answered(api.GET("/api/v1/auth")),
  staleTime: 60_000,
  retry: false,
};

export const useCaller = () => useQuery(callerQuery);

export const projectsQuery = (search = "") => ({
  queryKey: ["projects", search],
  queryFn: () =>
    answered(
      api.GET("/api/v1/sessions", {
        params: { query: { limit: 100, include_stats: true, name_contains: search || undefined } },
      }),
    ),
});

export const useProjects = (search = "") => useQuery(projectsQuery(search));

export const projectQuery = (id: string) => ({
  queryKey: ["project", id],
  queryFn: () => answered(api.GET("/api/v1/sessions/{session_id}", { params: { path: { session_id: id } } })),
});

export const deploymentsQuery = {
  queryKey: ["deployments"],
  queryFn: () => answered(api.GET("/v2/deployments", { params: { query: { limit: 100 } } })),
};
