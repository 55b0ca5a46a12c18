import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useTheme } from "./theme";

const HEIGHT_PX = 150;

export type Line = { name: string; colour: string; values: (number | null | undefined)[]; fill?: boolean };
type Props = { title: string; words: string; times: string[]; lines: Line[]; format: (value: number | null | undefined) => string };

/** Lines over time. `words` says to those who do not see them what they show. */
export function Chart({ title, words, times, lines, format }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const theme = useTheme();
  // biome-ignore lint/correctness/useExhaustiveDependencies: the colours of another theme are drawn anew
  useEffect(() => {
    const at = place.current;
    if (!at) return;
    const colour = (name: string) => getComputedStyle(at).getPropertyValue(name).trim();
    const axis = { stroke: colour("--ink-2"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const plot = new uPlot(
      {
        width: at.clientWidth,
        height: HEIGHT_PX,
        cursor: { y: false, points: { size: 5 } },
        axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => format(tick)) }],
        scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.05 : 1] } },
        series: [
          {},
          ...lines.map((line) => ({
            label: line.name,
            stroke: colour(line.colour),
            fill: line.fill ? `${colour(line.colour)}33` : undefined,
            width: 1.5,
            spanGaps: false,
            value: (_: uPlot, value: number | null) => format(value),
          })),
        ],
      },
      [times.map((time) => Date.parse(time) / 1000), ...lines.map((line) => line.values.map((value) => value ?? null))],
      at,
    );
    const resized = new ResizeObserver(() => plot.setSize({ width: at.clientWidth, height: HEIGHT_PX }));
    resized.observe(at);
    return () => {
      resized.disconnect();
      plot.destroy();
    };
  }, [times, lines, theme]);
  return (
    <figure className="panel p-2 min-w-0">
      <figcaption className="font-medium">{title}</figcaption>
      <div ref={place} role="img" aria-label={`${title}: ${words}`} className="w-full overflow-hidden" />
    </figure>
  );
}
