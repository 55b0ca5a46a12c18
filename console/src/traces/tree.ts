/** The runs of a trace as rows of a tree, whatever they say of each other. */

export type Node = {
  id: string;
  name: string;
  kind: string;
  status: string;
  start: number;
  end: number | null;
  firstToken: number | null;
  tokens: number | null;
  cost: number | null;
  depth: number;
  children: Node[];
  parent: Node | null;
};

export type Sent = {
  id?: string;
  name?: string | null;
  run_type?: string | null;
  status?: string | null;
  start_time?: string | null;
  end_time?: string | null;
  first_token_time?: string | null;
  total_tokens?: number | null;
  total_cost?: number | null;
  parent_run_ids?: string[] | null;
  dotted_order?: string | null;
};

const time = (text: string | null | undefined) => (text ? Date.parse(text) : null);

/** Roots, each with its children by their start. A run whose parent is not there is a root; a loop is cut open. */
export function treeOf(runs: Sent[]): Node[] {
  const nodes = new Map<string, Node>();
  const parents = new Map<string, string>();
  for (const run of runs) {
    const id = run.id as string;
    nodes.set(id, {
      id,
      name: run.name ?? "",
      kind: (run.run_type ?? "chain").toLowerCase(),
      status: (run.status ?? "pending").toLowerCase(),
      start: time(run.start_time) ?? 0,
      end: time(run.end_time),
      firstToken: time(run.first_token_time),
      tokens: run.total_tokens ?? null,
      cost: run.total_cost ?? null,
      depth: 0,
      children: [],
      parent: null,
    });
    const parent = run.parent_run_ids?.at(-1);
    if (parent) parents.set(id, parent);
  }
  const roots: Node[] = [];
  for (const node of nodes.values()) {
    const parent = nodes.get(parents.get(node.id) ?? "");
    if (!parent || loops(node, parents, nodes)) roots.push(node);
    else {
      node.parent = parent;
      parent.children.push(node);
    }
  }
  const byStart = (a: Node, b: Node) => a.start - b.start;
  roots.sort(byStart);
  const waiting = [...roots];
  for (let node = waiting.pop(); node; node = waiting.pop()) {
    node.children.sort(byStart);
    for (const child of node.children) {
      child.depth = node.depth + 1;
      waiting.push(child);
    }
  }
  return roots;
}

/** Whether the way up from a run comes back to it. Only the run with the least id of a loop is cut off. */
function loops(node: Node, parents: Map<string, string>, nodes: Map<string, Node>): boolean {
  let least = node.id;
  let at = parents.get(node.id);
  for (let steps = 0; at && nodes.has(at) && steps < 1000; steps++) {
    if (at === node.id) return least === node.id;
    if (at < least) least = at;
    at = parents.get(at);
  }
  return false;
}

/** Rows from top to bottom, without what lies below closed ones. */
export function rowsOf(roots: Node[], closed: ReadonlySet<string>): Node[] {
  const rows: Node[] = [];
  const waiting = [...roots].reverse();
  for (let node = waiting.pop(); node; node = waiting.pop()) {
    rows.push(node);
    if (!closed.has(node.id)) for (let i = node.children.length - 1; i >= 0; i--) waiting.push(node.children[i] as Node);
  }
  return rows;
}

/** From the first start to the last end. */
export function spanOf(nodes: Iterable<Node>, now: number): [number, number] {
  let begin = Number.POSITIVE_INFINITY;
  let end = Number.NEGATIVE_INFINITY;
  for (const node of nodes) {
    begin = Math.min(begin, node.start, node.end ?? node.start);
    end = Math.max(end, node.end ?? (node.status === "pending" ? now : node.start), node.start);
  }
  return Number.isFinite(begin) ? [begin, Math.max(end, begin + 1)] : [0, 1];
}
