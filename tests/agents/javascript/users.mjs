// Two users with tokens of an identity provider, by the official SDK: `node users.mjs URL TOKEN OTHER_TOKEN`.
import { Client } from "@langchain/langgraph-sdk";

const [url, token, otherToken] = process.argv.slice(2);
const clientOf = (value) =>
  new Client({ apiUrl: url, apiKey: null, defaultHeaders: value ? { Authorization: `Bearer ${value}` } : {} });
const statusOf = (promise) => promise.then(() => 200, (error) => error.status ?? String(error));

const user = clientOf(token);
const other = clientOf(otherToken);
const thread = await user.threads.create();
const result = await user.runs.wait(thread.thread_id, "whoami", { input: {} });
const told = {
  owner: thread.metadata.owner,
  identity: result.told.user_id,
  permissions: result.told.permissions,
  other: await statusOf(other.threads.get(thread.thread_id)),
  found: (await other.threads.search()).length,
  nobody: await statusOf(clientOf(null).threads.create()),
};
console.log(JSON.stringify(told));
