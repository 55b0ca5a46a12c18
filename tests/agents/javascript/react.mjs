// Chat pages in React, by both generations of `useStream`, against a server: `node react.mjs <url>` prints one line of JSON per
// check. tests/agents/test_react.py makes a test out of each, found by its name: keep `check("` at the line's start.
import assert from "node:assert/strict";

import { JSDOM } from "jsdom";

const dom = new JSDOM("<!doctype html><div id=root></div>", { url: process.argv[2] });
Object.assign(globalThis, { window: dom.window, navigator: dom.window.navigator, document: dom.window.document, sessionStorage: dom.window.sessionStorage });
globalThis.IS_REACT_ACT_ENVIRONMENT = false;

const React = await import("react");
const { createRoot } = await import("react-dom/client");
const { Client } = await import("@langchain/langgraph-sdk");
const current = await import("@langchain/react");
const earlier = await import("@langchain/langgraph-sdk/react");
const earliest = await import("earlier-langgraph-sdk/react");

const apiUrl = process.argv[2];
const client = new Client({ apiUrl });
const checks = [];
const check = (name, body) => checks.push({ name, body });

const until = async (holds, what) => {
  for (const end = Date.now() + 20_000; Date.now() < end; ) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`not within 20 s: ${what ?? holds}`);
};

/** A page with one hook. `page.now` is what the hook has given last, `page.texts` all that was ever shown. */
const open = (useStream, options, more) => {
  const page = { now: undefined, texts: new Set() };
  const Page = ({ given }) => {
    page.now = useStream(given);
    page.more = more?.(page.now);
    for (const message of page.now.messages ?? []) page.texts.add(textOf(message));
    return null;
  };
  const root = createRoot(document.createElement("div"));
  page.show = (given) => root.render(React.createElement(Page, { given: { apiUrl, ...given } }));
  page.close = () => root.unmount();
  page.show(options);
  return page;
};
const textOf = ({ content }) =>
  (typeof content === "string" ? content : content.map((block) => block.text ?? "").join("")).trim();
const texts = (page) => page.now.messages.map(textOf);
const human = (content) => ({ messages: [{ type: "human", content }] });
const newThread = async () => (await client.threads.create()).thread_id;

for (const [generation, { useStream }] of Object.entries({ current, earlier })) {
  const started = async (options, input, more) => {
    const page = open(useStream, options, more);
    await until(() => page.now);
    page.submitted = page.now.submit(input, { streamResumable: true, onDisconnect: "continue" });
    page.submitted.catch?.(() => {});
    return page;
  };
  const ended = (page) => until(() => !page.now.isLoading, "end of the run");
  const name = (what) => `${generation}: ${what}`;

  check(name("tokens are shown as they come, and the message stays"), async () => {
    const page = await started({ assistantId: "typing" }, human("hi"));
    await until(() => texts(page).includes("one two three"));
    await ended(page);
    assert.deepEqual(texts(page), ["hi", "one two three"]);
    assert.ok(page.texts.has("one") || page.texts.has("one two"), [...page.texts].join("|"));
    page.close();
  });

  check(name("an interrupt is shown and answered"), async () => {
    const page = await started({ assistantId: "ask" }, { text: "x" });
    await until(() => page.now.interrupt);
    assert.deepEqual(page.now.interrupt.value, { question: "Which?" });
    if (page.now.respond) await page.now.respond("that one");
    else await page.now.submit(undefined, { command: { resume: "that one" } });
    await until(() => page.now.values.items?.length === 2);
    await ended(page);
    assert.deepEqual(page.now.values.items, ["that one", "echo"]);
    assert.equal(page.now.interrupt, undefined);
    page.close();
  });

  check(name("a page that is loaded again goes on with the run"), async () => {
    const threadId = await newThread();
    const options = { assistantId: "slow", threadId, reconnectOnMount: true };
    const first = await started(options, { seconds: 8 });
    await until(async () => (await client.threads.getState(threadId)).next.length);
    first.close();
    const second = open(useStream, options);
    await until(() => second.now?.isLoading, "the page to see that the run goes on");
    await until(() => second.now.values?.items?.includes("slept"), "the end of the run on the page");
    await ended(second);
    second.close();
  });

  check(name("a run is stopped"), async () => {
    const threadId = await newThread();
    const page = await started({ assistantId: "slow", threadId, reconnectOnMount: true }, { seconds: 60 });
    await until(async () => (await client.runs.list(threadId))[0]?.status === "running");
    await page.now.stop();
    await ended(page);
    await until(async () => (await client.runs.list(threadId))[0].status === "interrupted");
    page.close();
  });

  check(name("subgraphs are seen at work"), async () => {
    const page = await started({ assistantId: "nested" }, { text: "x" }, ({ subgraphs }) => subgraphs?.size);
    let seen = 0;
    await until(() => {
      seen = Math.max(seen, page.more ?? 0);
      return page.now.values.items?.length && !page.now.isLoading;
    });
    assert.deepEqual([seen, page.now.values.items.at(-1)], [generation === "current" ? 1 : 0, "echo"]);
    page.close();
  });

  check(name("a page moves from one thread to another and back"), async () => {
    const [one, two] = [await newThread(), await newThread()];
    for (const [thread, word] of [[one, "first"], [two, "second"]]) {
      await client.runs.wait(thread, "tokens", { input: human(word) });
    }
    const page = open(useStream, { assistantId: "tokens", threadId: one });
    await until(() => page.now && texts(page)[0] === "first");
    page.show({ assistantId: "tokens", threadId: two });
    await until(() => texts(page)[0] === "second");
    page.show({ assistantId: "tokens", threadId: one });
    await until(() => texts(page)[0] === "first");
    page.close();
  });
}

check("current: an earlier message is edited, and the thread goes on from there", async () => {
  const { useStream, useMessageMetadata } = current;
  const Page = (given) => {
    const stream = useStream(given);
    return { ...stream, ...{ messages: stream.messages, values: stream.values, isLoading: stream.isLoading }, metadata: useMessageMetadata(stream, stream.messages[0]?.id) };
  };
  const threadId = await newThread();
  const page = open(Page, { assistantId: "tokens", threadId });
  await until(() => page.now);
  await page.now.submit(human("one"));
  await until(() => texts(page).length === 2 && !page.now.isLoading);
  await until(() => page.now.metadata?.parentCheckpointId);
  await page.now.submit(human("another"), { forkFrom: page.now.metadata.parentCheckpointId });
  await until(() => texts(page)[0] === "another" && texts(page).length === 2 && !page.now.isLoading);
  page.close();
});

check("earlier: an earlier message is edited, and the thread goes on from there", async () => {
  const threadId = await newThread();
  const page = open(earlier.useStream, { assistantId: "tokens", threadId, fetchStateHistory: true });
  await until(() => page.now);
  await page.now.submit(human("one"));
  await until(() => texts(page).length === 2 && !page.now.isLoading);
  await until(() => page.now.getMessagesMetadata(page.now.messages[0])?.firstSeenState?.parent_checkpoint);
  const { firstSeenState } = page.now.getMessagesMetadata(page.now.messages[0]);
  await page.now.submit(human("another"), { checkpoint: firstSeenState.parent_checkpoint });
  await until(() => texts(page)[0] === "another" && texts(page).length === 2 && !page.now.isLoading);
  page.close();
});

check("earliest: the work of tools is shown", async () => {
  const events = [];
  const onToolEvent = ({ event }) => events.push(event);
  const page = open(earliest.useStream, { assistantId: "uses_tools", onToolEvent }, ({ toolProgress }) => toolProgress);
  await until(() => page.now);
  const call = { name: "sound", args: { depth_m: 3 }, id: "a call" };
  await page.now.submit({ messages: [{ type: "ai", content: "", tool_calls: [call] }] });
  await until(() => !page.now.isLoading, "end of the run");
  assert.deepEqual(events, ["on_tool_start", "on_tool_event", "on_tool_end"]);
  assert.deepEqual(page.more.map(({ name, state }) => [name, state]), [["sound", "completed"]]);
  page.close();
});

check("current: a page follows a run over a WebSocket", async () => {
  const page = open(current.useStream, { assistantId: "tokens", webSocketFactory: (url) => new dom.window.WebSocket(url) });
  await until(() => page.now);
  await page.now.submit(human("hi"));
  await until(() => texts(page).includes("one two three") && !page.now.isLoading);
  page.close();
});

const only = process.argv[3];
for (const { name, body } of checks) {
  if (only && !name.includes(only)) continue;
  const failure = await body().then(() => null, (error) => error.stack ?? String(error));
  console.log(JSON.stringify({ name, failure }));
}
process.exit();
