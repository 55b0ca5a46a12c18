import { EventSourceParserStream } from "eventsource-parser/stream";
import { useEffect, useState } from "react";
import { api, Refusal, wordsOf } from "../api/client";
import { type Run, SELECT } from "./columns";
import type { bodyOf } from "./filters";

const AGAIN_MS = 1_000;
const KEPT_MAX = 500;
const NONE: Run[] = [];
const WELL = "Live: new runs appear at the top.";

type Search = ReturnType<typeof bodyOf>;

/** The newest runs of a search while it is live, newest first; and a sentence about how it goes. */
export function useTail(body: Search, on: boolean): { runs: Run[]; words: string } {
  const [runs, setRuns] = useState(NONE);
  const [words, setWords] = useState(WELL);
  const key = JSON.stringify(body);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the key says what the search is
  useEffect(() => {
    setRuns(NONE);
    setWords(WELL);
    if (!on) return;
    const left = new AbortController();
    const take = (run: Run) => setRuns((old) => newestFirst([run, ...old.filter((other) => other.id !== run.id)]));
    void follow(body, take, setWords, left.signal);
    return () => left.abort();
  }, [key, on]);
  return { runs: on ? runs : NONE, words };
}

const newestFirst = (runs: Run[]) =>
  runs.sort((one, other) => Date.parse(other.start_time ?? "") - Date.parse(one.start_time ?? "")).slice(0, KEPT_MAX);

/** Follows a search until the page leaves or its session ends. A stream that breaks off is taken up where it was. */
async function follow(body: Search, take: (run: Run) => void, say: (words: string) => void, signal: AbortSignal) {
  let last: string | undefined;
  while (!signal.aborted) {
    try {
      const stream = await opened(body, last, signal);
      say(WELL);
      for await (const event of events(stream)) {
        if (event.event === "error") throw new Refusal(401, wordsOf(JSON.parse(event.data), 401));
        last = event.id;
        take(JSON.parse(event.data) as Run);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refusal && error.status >= 400 && error.status < 500 && error.status !== 429)
        return say(`Not live any more: ${error.message}`);
    }
    say("The stream broke off; it is taken up again.");
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
}

async function opened(body: Search, last: string | undefined, signal: AbortSignal) {
  const { data, error, response } = await api.POST("/api/v1/runs/tail", {
    body: { ...body, select: [...SELECT] },
    headers: last ? { "Last-Event-ID": last } : {},
    parseAs: "stream",
    signal,
  });
  if (!response.ok || !data) throw new Refusal(response.status, wordsOf(error, response.status));
  return data as unknown as ReadableStream<Uint8Array>;
}

async function* events(stream: ReadableStream<Uint8Array>) {
  const reader = stream
    .pipeThrough(new TextDecoderStream() as TransformStream<Uint8Array, string>)
    .pipeThrough(new EventSourceParserStream())
    .getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}
