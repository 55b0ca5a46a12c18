import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { answered, api } from "../api/client";
import { type bodyOf } from "./filters";
import { type Run, SELECT } from "./columns";

const EVERY_MS = 1_500;
const KEPT_MAX = 500;
const NONE: Run[] = [];

/** The newest runs of a search while it is live, newest first; and a sentence about how it goes. */
export function useTail(body: ReturnType<typeof bodyOf>, on: boolean): { runs: Run[]; words: string } {
  const [runs, setRuns] = useState(NONE);
  const key = JSON.stringify(body);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another search begins anew
  useEffect(() => setRuns(NONE), [key, on]);
  const newest = useQuery({
    queryKey: ["tail", body],
    enabled: on,
    refetchInterval: EVERY_MS,
    queryFn: () => answered(api.POST("/api/v1/runs/query", { body: { ...body, limit: 50, select: [...SELECT], skip_pagination: true } })),
  });
  useEffect(() => {
    const came = newest.data?.runs;
    if (!on || !came) return;
    setRuns((old) => {
      const fresh = new Set(came.map((run) => run.id));
      return [...came, ...old.filter((run) => !fresh.has(run.id))].slice(0, KEPT_MAX);
    });
  }, [newest.data, on]);
  return { runs: on ? runs : NONE, words: newest.error ? "The server does not answer; it is asked again." : "Live: new runs appear at the top." };
}
