import { Client } from "@langchain/langgraph-sdk";
import { answered, api } from "../api/client";

const TOKEN_LIFE_S = 3600;

type Token = { text: string; until: number };
const tokens = new Map<string, Promise<Token>>();

/** A token that opens this one agent: the session's cookie never reaches an agent. */
async function tokenFor(agent: string): Promise<string> {
  const known = tokens.get(agent);
  if (known) {
    const token = await known.catch(() => null);
    if (token && token.until > Date.now() + 60_000) return token.text;
  }
  const asked = answered(
    api.POST("/api/v1/auth/token", {
      body: { expires_in: TOKEN_LIFE_S, scopes: [`agents:read:${agent}`, `agents:invoke:${agent}`] },
    }),
  ).then((made) => ({ text: made.access_token, until: Date.now() + made.expires_in * 1000 }));
  tokens.set(agent, asked);
  return (await asked).text;
}

/** A client of a deployed agent, or without a name of the agent server at this origin. */
export function clientOf(agent: string | undefined): Client {
  const apiUrl = agent ? `${location.origin}/d/${encodeURIComponent(agent)}` : location.origin;
  return new Client({
    apiUrl,
    apiKey: null,
    // A stream connects again by itself: were each of its requests repeated too, the page would say half a minute later that it is gone.
    callerOptions: { maxRetries: 0 },
    onRequest: async (_url, init) => {
      const headers = new Headers(init.headers);
      if (agent) headers.set("Authorization", `Bearer ${await tokenFor(agent)}`);
      return { ...init, credentials: "omit", headers };
    },
  });
}
