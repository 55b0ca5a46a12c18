import dagre from "@dagrejs/dagre";
import { useMemo } from "react";
import { visible } from "../frame/words";

type Graph = { nodes: { id: string | number }[]; edges: { source: string; target: string; conditional?: boolean }[] };

const HEIGHT = 30;

/** The graph from top to bottom; nodes in `active` are lit, and marked by a thick frame. */
export function GraphPicture({ graph, active }: { graph: Graph; active: readonly string[] }) {
  const laid = useMemo(() => {
    const made = new dagre.graphlib.Graph().setGraph({ rankdir: "TB", nodesep: 18, ranksep: 26, marginx: 6, marginy: 6 });
    made.setDefaultEdgeLabel(() => ({}));
    for (const { id } of graph.nodes) made.setNode(String(id), { width: Math.max(60, String(id).length * 7.5 + 20), height: HEIGHT });
    for (const { source, target } of graph.edges) made.setEdge(source, target);
    dagre.layout(made);
    return made;
  }, [graph]);
  const { width = 0, height = 0 } = laid.graph();
  return (
    <svg role="img" aria-label={`Graph; active: ${active.join(", ") || "none"}`} viewBox={`0 0 ${width} ${height}`} style={{ width: Math.min(width, 420), maxWidth: "100%" }}>
      {graph.edges.map((edge) => {
        const points = laid.edge(edge.source, edge.target)?.points ?? [];
        return (
          <polyline
            key={`${edge.source} ${edge.target}`}
            points={points.map((point) => `${point.x},${point.y}`).join(" ")}
            fill="none"
            stroke="var(--ink-3)"
            strokeDasharray={edge.conditional ? "4 3" : undefined}
          />
        );
      })}
      {laid.nodes().map((id) => {
        const node = laid.node(id);
        const lit = active.includes(id);
        return (
          <g key={id} data-node={id} data-active={lit || undefined}>
            <rect x={node.x - node.width / 2} y={node.y - HEIGHT / 2} width={node.width} height={HEIGHT} rx={5} fill={lit ? "var(--accent)" : "var(--bg-2)"} stroke={lit ? "var(--accent)" : "var(--ink-3)"} strokeWidth={lit ? 3 : 1} />
            <text x={node.x} y={node.y + 4} textAnchor="middle" fontSize={12} fill={lit ? "var(--on-accent)" : "var(--ink)"}>
              {visible(id)}
            </text>
          </g>
        );
      })}
    </svg>
  );
}
