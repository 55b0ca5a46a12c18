// The official JavaScript SDK for traces against a platform: `node checks.mjs <url> <key>` prints one line of JSON per check.
// tests/platform/test_sdk_javascript.py makes a test out of each, found by its name: keep `check("` at the line's start.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";

import { Client } from "langsmith";
import { RunTree } from "langsmith/run_trees";
import { traceable } from "langsmith/traceable";

process.env.TZ = "America/New_York"; // a time without a zone would be read as one of there

const client = new Client({ apiUrl: `${process.argv[2]}/api/v1`, apiKey: process.argv[3] });
const checks = [];
const check = (name, body) => checks.push({ name, body });

const newProject = () => `js-${randomUUID().slice(0, 8)}`;
const soon = async (find) => {
  const deadline = Date.now() + 10_000;
  for (;;) {
    const found = await find().catch(() => undefined);
    if (found) return found;
    assert.ok(Date.now() < deadline, "not found in time");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};
const runsOf = (projectName, count, filters = {}) =>
  soon(async () => {
    const runs = [];
    for await (const run of client.listRuns({ projectName, ...filters })) runs.push(run);
    return runs.length === count && runs.every((run) => run.end_time) ? runs : undefined;
  });

const traced = async (projectName) => {
  const options = { client, project_name: projectName, tracingEnabled: true };
  const model = traceable(
    async () => ({ text: "4 knots", usage_metadata: { input_tokens: 10, output_tokens: 20, total_tokens: 30 } }),
    { name: "model", run_type: "llm", metadata: { ls_provider: "openai", ls_model_name: "gpt-4o-mini" } },
  );
  const agent = traceable(async (question) => (await model({ question })).text, {
    name: "agent", tags: ["prod"], metadata: { user_id: "u-1" }, ...options,
  });
  assert.equal(await agent("how fast"), "4 knots");
  await client.awaitPendingTraceBatches();
};

check("a trace is read back whole", async () => {
  const project = newProject();
  await traced(project);
  const runs = await runsOf(project, 2);
  const [agent, model] = ["agent", "model"].map((name) => runs.find((run) => run.name === name));
  assert.deepEqual([agent.run_type, agent.status, agent.tags], ["chain", "success", ["prod"]]);
  assert.deepEqual(agent.outputs, { outputs: "4 knots" });
  assert.equal(model.parent_run_id, agent.id);
  assert.deepEqual([model.prompt_tokens, model.completion_tokens, agent.total_tokens], [10, 20, 30]);
  assert.equal((await client.readRun(agent.id)).name, "agent");
});

check("runs are found by a filter", async () => {
  const project = newProject();
  await traced(project);
  const filter = 'and(eq(metadata_key, "user_id"), eq(metadata_value, "u-1"))';
  const runs = await runsOf(project, 1, { filter, isRoot: true });
  assert.deepEqual(runs.map((run) => run.name), ["agent"]);
});

check("a run tree is posted and patched", async () => {
  const project = newProject();
  const tree = new RunTree({ name: "tree", run_type: "chain", inputs: { x: 1 }, project_name: project, client });
  await tree.postRun();
  await tree.end({ y: 2 });
  await tree.patchRun();
  await client.awaitPendingTraceBatches();
  const [run] = await runsOf(project, 1);
  assert.deepEqual([run.inputs, run.outputs], [{ x: 1 }, { y: 2 }]);
});

check("a run without an id is given one, and its times are read as UTC", async () => {
  const project = newProject();
  const begun = Date.now();
  await client.createRun({ name: "no id", run_type: "chain", inputs: { x: 1 }, project_name: project, start_time: begun, end_time: begun + 5 });
  const [run] = await runsOf(project, 1);
  assert.equal(run.name, "no id");
  assert.equal(new Date(run.start_time).getTime(), begun);
  assert.equal(new Date((await client.readProject({ projectName: project })).start_time).getTime(), begun);
});

check("projects are created, read and deleted", async () => {
  const project = newProject();
  const made = await client.createProject({ projectName: project, description: "tides" });
  assert.equal((await client.readProject({ projectName: project })).id, made.id);
  await assert.rejects(client.createProject({ projectName: project }));
  await client.deleteProject({ projectId: made.id });
  assert.equal(await client.hasProject({ projectName: project }), false);
});

check("feedback is created, listed and deleted", async () => {
  const project = newProject();
  await traced(project);
  const [run] = await runsOf(project, 1, { isRoot: true });
  const made = await client.createFeedback(run.id, "helpful", { score: 1, comment: "quick" });
  const listed = await soon(async () => {
    const found = [];
    for await (const feedback of client.listFeedback({ runIds: [run.id] })) found.push(feedback);
    return found.length ? found : undefined;
  });
  assert.deepEqual(listed.map((feedback) => [feedback.id, feedback.score]), [[made.id, 1]]);
  await client.deleteFeedback(made.id);
});

for (const { name, body } of checks) {
  const failure = await body().then(() => null, (error) => String(error?.stack ?? error));
  console.log(JSON.stringify({ name, failure }));
}
