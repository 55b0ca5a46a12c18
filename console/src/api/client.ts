import { QueryClient } from "@tanstack/react-query";
import createClient from "openapi-fetch";
import { hearTime } from "./clock";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

/** What the server said was wrong, with its status. Status 0: it did not answer. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export const api = createClient<paths>({
  // Looked up at each call: the tests of the browser put their own fetch there.
  fetch: async (request) => {
    try {
      return await fetch(request);
    } catch {
      throw new Refusal(0, "The server does not answer. It may be restarting; this page tries again by itself.");
    }
  },
});
api.use({
  onRequest({ request }) {
    const workspace = /^\/o\/([^/]+)/.exec(location.pathname)?.[1];
    if (workspace && workspace !== "-") request.headers.set("X-Tenant-Id", decodeURIComponent(workspace));
    return request;
  },
  onResponse({ response }) {
    hearTime(response.headers.get("date"));
    return undefined;
  },
});

/** The data of an answer. Throws a Refusal with the server's own words. */
export async function answered<T>(call: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await call;
  if (response.ok) return data as T;
  throw new Refusal(response.status, wordsOf(error, response.status));
}

export function wordsOf(error: unknown, status: number): string {
  const detail = (error as { detail?: unknown })?.detail;
  if (typeof detail === "string") return detail;
  if (Array.isArray(detail))
    return detail.map((item) => `${(item.loc ?? []).slice(1).join(".")} ${item.msg}`.trim()).join("; ");
  return `The server answered ${status}`;
}

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 5_000,
      retry: (count, error) => count < 30 && error instanceof Refusal && [0, 502, 503].includes(error.status),
      retryDelay: 1_000,
    },
  },
});
