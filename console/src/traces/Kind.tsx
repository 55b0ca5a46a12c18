const KINDS: Record<string, [string, string]> = {
  llm: ["L", "var(--k-llm)"],
  tool: ["T", "var(--k-tool)"],
  chain: ["C", "var(--k-chain)"],
  retriever: ["R", "var(--k-retriever)"],
  embedding: ["E", "var(--k-retriever)"],
  prompt: ["P", "var(--k-other)"],
  parser: ["J", "var(--k-other)"],
};

export const colourOf = (kind: string) => (KINDS[kind.toLowerCase()] ?? ["?", "var(--k-other)"])[1];

/** The kind of a run: a letter in a frame of its colour, and the word for who cannot see them. */
export function Kind({ of }: { of: string }) {
  const [letter, colour] = KINDS[of.toLowerCase()] ?? ["?", "var(--k-other)"];
  return (
    <span
      title={of.toLowerCase()}
      className="inline-grid place-items-center w-4 h-4 rounded-sm border text-[10px] font-bold shrink-0"
      style={{ color: colour, borderColor: colour }}
    >
      <span aria-hidden>{letter}</span>
      <span className="sr-only">{of.toLowerCase()}</span>
    </span>
  );
}
