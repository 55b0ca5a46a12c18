// The official JavaScript SDK against a server: `node checks.mjs <url> [<package>]` prints one line of JSON per check.
// tests/agents/test_sdk_javascript.py makes a test out of each, found by its name: keep `check("` at the line's start.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";

const { Client } = await import(process.argv[3] ?? "@langchain/langgraph-sdk");
const client = new Client({ apiUrl: process.argv[2], callerOptions: { maxRetries: 0 } });
const checks = [];
const check = (name, body) => checks.push({ name, body });

const newThread = async () => (await client.threads.create()).thread_id;
const collect = async (stream) => {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
};
const dataOf = (parts, event) => parts.filter((part) => part.event === event).map((part) => part.data);
const status = (number) => (error) => error.status === number;
const untilRunning = async (threadId) => {
  while (!(await client.threads.getState(threadId)).values.items?.length) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
};
const hi = { messages: [{ role: "user", content: "hi" }] };

// --- assistants

check("assistants are created and found", async () => {
  const metadata = { mark: randomUUID() };
  const made = await client.assistants.create({ graphId: "echo", context: { model_name: "m" }, metadata, name: "Mine" });
  assert.deepEqual(made.config, { configurable: { model_name: "m" } });
  const found = await client.assistants.search({ metadata });
  assert.deepEqual(found, [made]);
  assert.equal(await client.assistants.count({ metadata }), 1);
  const page = await client.assistants.search({ limit: 1, includePagination: true });
  assert.deepEqual([page.assistants.length, page.next], [1, "1"]);
});

check("each graph has a system assistant", async () => {
  const found = await client.assistants.search({ graphId: "echo", metadata: { created_by: "system" } });
  assert.deepEqual(found.map((assistant) => [assistant.name, assistant.version]), [["echo", 1]]);
  const drawn = await client.assistants.getGraph(found[0].assistant_id);
  assert.deepEqual(drawn.nodes.map((node) => node.id), ["__start__", "echo", "__end__"]);
  const schemas = await client.assistants.getSchemas(found[0].assistant_id);
  assert.ok(schemas.input_schema.properties.text);
});

check("an assistant is updated, its versions listed, and it is deleted", async () => {
  const { assistant_id: id } = await client.assistants.create({ graphId: "echo", name: "one" });
  assert.equal((await client.assistants.update(id, { name: "two" })).version, 2);
  assert.deepEqual((await client.assistants.getVersions(id)).map((version) => version.name), ["two", "one"]);
  assert.equal((await client.assistants.setLatest(id, 1)).name, "one");
  await client.assistants.delete(id);
  await assert.rejects(client.assistants.get(id), status(404));
});

// --- threads

check("threads are created, found, changed and deleted", async () => {
  const metadata = { mark: randomUUID() };
  const made = await client.threads.create({ metadata });
  assert.deepEqual([made.status, made.metadata], ["idle", metadata]);
  await client.threads.update(made.thread_id, { metadata: { more: 1 } });
  const [found] = await client.threads.search({ metadata, sortBy: "created_at", sortOrder: "desc" });
  assert.deepEqual(found.metadata, { ...metadata, more: 1 });
  assert.deepEqual(await client.threads.search({ metadata, select: ["status"] }), [{ status: "idle" }]);
  assert.equal(await client.threads.count({ metadata, status: "idle" }), 1);
  await client.threads.delete(made.thread_id);
  await assert.rejects(client.threads.get(made.thread_id), status(404));
});

check("a thread id is taken once", async () => {
  const threadId = randomUUID();
  await client.threads.create({ threadId });
  await assert.rejects(client.threads.create({ threadId }), status(409));
  assert.equal((await client.threads.create({ threadId, ifExists: "do_nothing" })).thread_id, threadId);
});

check("a thread is made with a past", async () => {
  const updates = [{ values: { text: "old" }, asNode: "__start__" }];
  const { thread_id: id } = await client.threads.create({ graphId: "pair", supersteps: [{ updates }] });
  assert.deepEqual((await client.threads.getState(id)).next, ["a"]);
  assert.equal((await client.runs.wait(id, "pair", { input: null })).text, "oldab");
});

check("state and history are read", async () => {
  const id = await newThread();
  assert.deepEqual((await client.threads.getState(id)).values, {});
  await client.runs.wait(id, "pair", { input: { text: "x" } });
  const state = await client.threads.getState(id);
  assert.deepEqual([state.values.text, state.next, state.checkpoint.thread_id], ["xab", [], id]);
  const history = await client.threads.getHistory(id);
  assert.deepEqual(history.map((past) => past.next), [[], ["b"], ["a"], ["__start__"]]);
  assert.deepEqual(history[0].parent_checkpoint, history[1].checkpoint);
  assert.deepEqual((await client.threads.getState(id, history[1].checkpoint)).values.text, "xa");
  assert.deepEqual((await client.threads.getState(id, history[1].checkpoint_id)).values.text, "xa");
  assert.deepEqual(await client.threads.getHistory(id, { limit: 1, before: history[1].checkpoint }), [history[2]]);
  assert.deepEqual(await client.threads.getHistory(id, { before: { configurable: history[2].checkpoint } }), [history[3]]);
});

check("the state of a subgraph is read", async () => {
  const id = await newThread();
  await client.runs.wait(id, "nested", { input: { text: "x" } });
  const entered = (await client.threads.getHistory(id)).find((past) => past.next[0] === "inner");
  const state = await client.threads.getState(id, entered.checkpoint, { subgraphs: true });
  assert.equal(state.tasks[0].state.values.text, "xaab");
  assert.equal((await client.threads.getState(id, entered.tasks[0].checkpoint)).values.text, "xaab");
});

check("the state is updated as a node", async () => {
  const id = await newThread();
  await client.runs.wait(id, "pair", { input: { text: "x" } });
  const written = await client.threads.updateState(id, { values: { text: "mine" }, asNode: "a" });
  const state = await client.threads.getState(id);
  assert.deepEqual([state.values.text, state.next], ["mine", ["b"]]);
  assert.equal(written.checkpoint.checkpoint_id, state.checkpoint.checkpoint_id);
});

check("a copy goes its own way", async () => {
  const id = await newThread();
  await client.runs.wait(id, "echo", { input: { items: ["shared"] } });
  const copy = await client.threads.copy(id);
  await client.runs.wait(copy.thread_id, "echo", { input: {} });
  assert.deepEqual((await client.threads.getState(id)).values.items, ["shared", "echo"]);
  assert.deepEqual((await client.threads.getState(copy.thread_id)).values.items, ["shared", "echo", "echo"]);
});

// --- streams

check("a stream of updates names the nodes and tells the run first", async () => {
  const id = await newThread();
  let created;
  const onRunCreated = (run) => (created = run);
  const stream = client.runs.stream(id, "pair", { input: { text: "x" }, streamMode: "updates", onRunCreated });
  const parts = await collect(stream);
  assert.equal(created.thread_id, id);
  assert.deepEqual(parts[0], { id: undefined, event: "metadata", data: { run_id: created.run_id, attempt: 1 } });
  assert.deepEqual(dataOf(parts, "updates"), [
    { a: { text: "xa", items: ["a"] } },
    { b: { text: "xab", items: ["b"] } },
  ]);
});

check("a stream of values gives the state after each step", async () => {
  const parts = await collect(client.runs.stream(await newThread(), "pair", { input: { text: "x" } }));
  assert.deepEqual(dataOf(parts, "values").map((values) => values.text), ["x", "xa", "xab"]);
});

check("a stream of message tuples gives tokens", async () => {
  const parts = await collect(
    client.runs.stream(await newThread(), "tokens", { input: hi, streamMode: ["messages-tuple", "values"] }),
  );
  const chunks = dataOf(parts, "messages");
  assert.equal(chunks.map(([message]) => message.content).join(""), "one two three");
  assert.ok(chunks.every(([, metadata]) => metadata.langgraph_node === "talk"));
  assert.deepEqual(dataOf(parts, "values").at(-1).messages.map((message) => message.type), ["human", "ai"]);
});

check("a stream of messages accumulates them", async () => {
  const parts = await collect(client.runs.stream(await newThread(), "tokens", { input: hi, streamMode: "messages" }));
  const partial = dataOf(parts, "messages/partial").map(([message]) => message.content);
  assert.deepEqual(partial.slice(0, 3), ["one ", "one two ", "one two three"]);
});

check("a stream of subgraphs names their namespace", async () => {
  const options = { input: { text: "x" }, streamMode: "updates", streamSubgraphs: true };
  const parts = await collect(client.runs.stream(await newThread(), "nested", options));
  const events = parts.slice(1).map((part) => part.event.split(":")[0]);
  assert.deepEqual(events, ["updates", "updates|inner", "updates|inner", "updates", "updates"]);
});

check("a stream needs no thread", async () => {
  const parts = await collect(client.runs.stream(null, "pair", { input: { text: "x" }, streamMode: "updates" }));
  assert.equal(dataOf(parts, "updates").length, 2);
});

check("a stream without a thread is joined by the id of its run alone", async () => {
  let created;
  const options = { input: { seconds: 1 }, streamMode: "updates", streamResumable: true };
  const stream = client.runs.stream(null, "slow", { ...options, onRunCreated: (run) => (created = run) });
  const [whole] = await Promise.all([
    collect(stream),
    (async () => {
      while (!created) await new Promise((resolve) => setTimeout(resolve, 20));
      const joined = await collect(client.runs.joinStream(undefined, created.run_id, { lastEventId: "-1" }));
      assert.deepEqual(dataOf(joined, "updates").map(Object.keys), [["count"], ["sleep"], ["last"]]);
    })(),
  ]);
  assert.equal(dataOf(whole, "updates").length, 3);
});

check("an error of the graph is the last event", async () => {
  const parts = await collect(client.runs.stream(await newThread(), "raises", { input: {}, streamMode: "updates" }));
  assert.deepEqual(parts.map((part) => part.event), ["metadata", "updates", "error"]);
  assert.deepEqual(parts.at(-1).data, { error: "ValueError", message: "boom" });
});

check("a resumable run is joined from the last event that was seen", async () => {
  const id = await newThread();
  const run = await client.runs.create(id, "slow", {
    input: { seconds: 0.5 },
    streamMode: ["updates", "values"],
    streamResumable: true,
  });
  const seen = [];
  for await (const part of client.runs.joinStream(id, run.run_id, { lastEventId: "-1" })) {
    seen.push(part);
    if (seen.length === 3) break;
  }
  seen.push(...(await collect(client.runs.joinStream(id, run.run_id, { lastEventId: seen.at(-1).id }))));
  const whole = await collect(client.runs.joinStream(id, run.run_id, { lastEventId: "-1" }));
  assert.deepEqual(seen, whole);
  assert.equal(new Set(whole.map((part) => part.id)).size, 8);
});

check("a joined stream is cut to some modes", async () => {
  const id = await newThread();
  const run = await client.runs.create(id, "pair", {
    input: { text: "x" },
    streamMode: ["updates", "values", "debug"],
    streamResumable: true,
  });
  await client.runs.join(id, run.run_id);
  const events = async (streamMode) => {
    const parts = await collect(client.runs.joinStream(id, run.run_id, { lastEventId: "-1", streamMode }));
    return [...new Set(parts.map((part) => part.event))];
  };
  assert.deepEqual(await events("updates"), ["updates"]);
  assert.deepEqual((await events(["updates", "values"])).sort(), ["updates", "values"]);
});

// --- runs

check("wait gives the last values", async () => {
  const id = await newThread();
  assert.deepEqual(await client.runs.wait(id, "pair", { input: { text: "x" } }), { text: "xab", items: ["a", "b"] });
  assert.equal((await client.runs.wait(null, "pair", { input: { text: "x" } })).text, "xab");
});

check("wait raises what the graph raised, or gives it", async () => {
  await assert.rejects(client.runs.wait(null, "raises", { input: {} }), /ValueError: boom/);
  const failed = await client.runs.wait(null, "raises", { input: {}, raiseError: false });
  assert.deepEqual(failed, { __error__: { error: "ValueError", message: "boom" } });
});

check("configuration and metadata reach the graph", async () => {
  const config = { configurable: { model_name: "m" }, tags: ["a tag"] };
  const { seen } = await client.runs.wait(null, "shows_config", { input: {}, config, metadata: { mark: "here" } });
  assert.equal(seen.configurable.model_name, "m");
  assert.equal(seen.metadata.mark, "here");
  assert.ok(seen.tags.includes("a tag"));
});

check("runs are listed, read and deleted", async () => {
  const id = await newThread();
  const first = await client.runs.create(id, "echo", { input: {}, metadata: { n: 1 } });
  const second = await client.runs.create(id, "raises", { input: {} });
  await client.runs.join(id, second.run_id);
  assert.deepEqual((await client.runs.list(id)).map((run) => run.run_id), [second.run_id, first.run_id]);
  assert.deepEqual((await client.runs.list(id, { status: "error" })).map((run) => run.run_id), [second.run_id]);
  assert.equal((await client.runs.get(id, first.run_id)).metadata.n, 1);
  await client.runs.delete(id, first.run_id);
  await assert.rejects(client.runs.get(id, first.run_id), status(404));
});

check("a list of runs is cut to some fields", async () => {
  const id = await newThread();
  const run = await client.runs.create(id, "echo", { input: {} });
  await client.runs.join(id, run.run_id);
  const select = ["run_id", "status"];
  assert.deepEqual(await client.runs.list(id, { select }), [{ run_id: run.run_id, status: "success" }]);
});

check("a run on a thread that is missing is an error, or makes it", async () => {
  const id = randomUUID();
  await assert.rejects(client.runs.wait(id, "echo", { input: {} }), status(404));
  await assert.rejects(collect(client.runs.stream(id, "echo", { input: {} })), status(404));
  await client.runs.wait(id, "echo", { input: {}, ifNotExists: "create" });
  assert.equal((await client.threads.get(id)).status, "idle");
});

check("a busy thread refuses a run that will not wait", async () => {
  const id = await newThread();
  const run = await client.runs.create(id, "slow", { input: { seconds: 30 } });
  await assert.rejects(client.runs.create(id, "echo", { input: {}, multitaskStrategy: "reject" }), status(409));
  await client.runs.cancel(id, run.run_id, true);
});

// --- interrupts and cancellation

check("an interrupt is seen and answered", async () => {
  const id = await newThread();
  const asked = await collect(client.runs.stream(id, "ask", { input: { text: "x" }, streamMode: "updates" }));
  const [interrupt] = asked.at(-1).data.__interrupt__;
  assert.deepEqual(interrupt.value, { question: "Which?" });
  const thread = await client.threads.get(id);
  assert.equal(thread.status, "interrupted");
  assert.deepEqual(Object.values(thread.interrupts).flat().map((known) => known.id), [interrupt.id]);
  const { tasks } = await client.threads.getState(id);
  assert.deepEqual(tasks[0].interrupts.map((known) => known.id), [interrupt.id]);
  const values = await client.runs.wait(id, "ask", { command: { resume: "this" } });
  assert.deepEqual(values.items, ["this", "echo"]);
});

check("a run stops before a node and goes on without input", async () => {
  const id = await newThread();
  await client.runs.wait(id, "pair", { input: { text: "x" }, interruptBefore: ["b"] });
  assert.deepEqual((await client.threads.getState(id)).next, ["b"]);
  const parts = await collect(client.runs.stream(id, "pair", { input: null, streamMode: "updates" }));
  assert.deepEqual(dataOf(parts, "updates"), [{ b: { text: "xab", items: ["b"] } }]);
});

check("a run is cancelled", async () => {
  const id = await newThread();
  const run = await client.runs.create(id, "slow", { input: { seconds: 30 } });
  await untilRunning(id);
  await client.runs.cancel(id, run.run_id, true);
  assert.equal((await client.runs.get(id, run.run_id)).status, "interrupted");
  assert.deepEqual((await client.threads.getState(id)).next, ["sleep"]);
});

check("a run is rolled back", async () => {
  const id = await newThread();
  const run = await client.runs.create(id, "slow", { input: { seconds: 30 } });
  await untilRunning(id);
  assert.equal(await client.runs.cancel(id, run.run_id, false, "rollback"), undefined);
  await client.runs.join(id, run.run_id);
  await assert.rejects(client.runs.get(id, run.run_id), status(404));
  assert.deepEqual(await client.threads.getHistory(id), []);
});

check("somebody who waits for a run learns that it was cancelled before it began", async () => {
  const id = await newThread();
  const first = await client.runs.create(id, "slow", { input: { seconds: 30 } });
  const cancelSecond = async () => {
    let runs;
    do runs = await client.runs.list(id);
    while (runs.length < 2);
    await client.runs.cancel(id, runs[0].run_id, true);
  };
  await Promise.all([client.runs.wait(id, "echo", { input: {} }), cancelSecond()]);
  await client.runs.cancel(id, first.run_id, true);
});

check("a client that hangs up can end its run", async () => {
  const id = await newThread();
  const hangUp = new AbortController();
  const stream = client.runs.stream(id, "slow", {
    input: { seconds: 30 },
    onDisconnect: "cancel",
    signal: hangUp.signal,
  });
  const first = await stream.next();
  hangUp.abort();
  await client.runs.join(id, first.value.data.run_id);
  assert.equal((await client.runs.get(id, first.value.data.run_id)).status, "interrupted");
});

check("crons are made, changed, searched, counted and deleted", async () => {
  const id = await newThread();
  const mark = { mark: id };
  const input = { text: "x" };
  const daily = await client.crons.create("echo", { schedule: "0 7 * * *", input, metadata: mark });
  assert.ok(new Date(daily.next_run_date) > new Date());
  const onThread = await client.crons.createForThread(id, "echo", { schedule: "* * * * * *", input, metadata: mark });
  let runs;
  do runs = await client.runs.list(id);
  while (runs.length === 0);
  assert.equal((await client.runs.join(id, runs[0].run_id)).text, "x!");
  assert.deepEqual((await client.crons.search({ threadId: id })).map((cron) => cron.cron_id), [onThread.cron_id]);
  assert.equal(await client.crons.count({ threadId: id }), 1);
  const paused = await client.crons.update(daily.cron_id, { enabled: false });
  assert.equal(paused.enabled, false);
  await client.crons.delete(onThread.cron_id);
  await client.crons.delete(daily.cron_id);
  assert.equal(await client.crons.count({ threadId: id }), 0);
  await assert.rejects(client.crons.create("echo", { schedule: "0 0 31 2 *" }), status(422));
});

check("items are put, read, searched, listed and deleted", async () => {
  const below = ["javascript", await newThread()];
  await client.store.putItem([...below, "boats"], "one", { text: "boats", since: 1843 });
  await client.store.putItem([...below, "birds"], "two", { text: "birds", since: 1990 });
  const item = await client.store.getItem([...below, "boats"], "one");
  assert.deepEqual(item.value, { text: "boats", since: 1843 });
  assert.ok(item.createdAt);
  const { items } = await client.store.searchItems(below, { filter: { since: { $lt: 1900 } } });
  assert.deepEqual(items.map((found) => found.key), ["one"]);
  const { namespaces } = await client.store.listNamespaces({ prefix: below });
  assert.deepEqual(namespaces.map((found) => found.at(-1)), ["birds", "boats"]);
  await client.store.deleteItem([...below, "boats"], "one");
  assert.equal((await client.store.searchItems(below)).items.length, 1);
  await assert.rejects(client.store.putItem(["a.b"], "k", {}));
});

for (const { name, body } of checks) {
  const late = new Promise((_, reject) => setTimeout(reject, 10_000, new Error("took longer than 10 s")).unref());
  const failure = await Promise.race([body(), late]).then(() => null, (error) => error.stack ?? String(error));
  console.log(JSON.stringify({ name, failure }));
}
process.exit(0); // whatever a failed check left open
