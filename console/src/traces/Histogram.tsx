import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { answered, api } from "../api/client";
import { count, exact } from "../frame/words";
import type { bodyOf } from "./filters";

const BUCKETS = 80;
const AGAIN_MS = 10_000;

type Props = { body: ReturnType<typeof bodyOf>; live: boolean; onChoose: (from: string, to: string) => void };

/** How many runs of a search began when, and how many of them failed. Drawing over bars chooses their time. */
export function Histogram({ body, live, onChoose }: Props) {
  const [drawn, setDrawn] = useState<[number, number] | null>(null);
  const series = useQuery({
    queryKey: ["histogram", body],
    refetchInterval: live ? AGAIN_MS : false,
    queryFn: ({ signal }) =>
      answered(api.POST("/api/v1/runs/stats/series", { body: { ...body, buckets: BUCKETS, select: ["run_count", "error_rate"] }, signal })),
    placeholderData: (before) => before,
  });
  const buckets = series.data?.buckets ?? [];
  const most = Math.max(1, ...buckets.map((each) => each.run_count ?? 0));
  const all = buckets.reduce((sum, each) => sum + (each.run_count ?? 0), 0);
  const failed = Math.round(buckets.reduce((sum, each) => sum + (each.run_count ?? 0) * (each.error_rate ?? 0), 0));
  const [first, last] = drawn ? [Math.min(...drawn), Math.max(...drawn)] : [-1, -1];
  const choose = () => {
    const from = buckets[first]?.start_time;
    const to = buckets[last]?.start_time;
    setDrawn(null);
    if (from && to && series.data) onChoose(from, new Date(Date.parse(to) + series.data.seconds * 1000 - 1).toISOString());
  };
  return (
    <div
      role="img"
      aria-label={series.data ? `${count(all)} runs over time, ${count(failed)} of them failed` : "Runs over time"}
      className="flex items-end gap-px h-14 px-4 pt-2 border-b border-line select-none touch-none cursor-crosshair"
      onPointerUp={choose}
      onPointerLeave={() => setDrawn(null)}
    >
      {buckets.map((each, index) => {
        const runs = each.run_count ?? 0;
        const bad = runs * (each.error_rate ?? 0);
        return (
          <div
            key={each.start_time}
            title={`${exact(each.start_time)}: ${count(runs)} runs${bad ? `, ${count(Math.round(bad))} failed` : ""}`}
            className={`flex-1 h-full flex flex-col justify-end ${index >= first && index <= last ? "bg-accentbg" : "hover:bg-bg3"}`}
            onPointerDown={() => setDrawn([index, index])}
            onPointerEnter={() => setDrawn((old) => (old ? [old[0], index] : old))}
          >
            <div className="bg-bad" style={{ height: `${(100 * bad) / most}%`, minHeight: bad ? 2 : 0 }} />
            <div className="bg-accent" style={{ height: `${(100 * (runs - bad)) / most}%`, minHeight: runs - bad >= 1 ? 2 : 0 }} />
          </div>
        );
      })}
    </div>
  );
}
