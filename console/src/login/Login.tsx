import { useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { answered, api, queries } from "../api/client";
import { Snippet } from "../frame/parts";
import { safeNext } from "../router";

export function LoginPage() {
  const { next } = useSearch({ from: "/login" });
  const navigate = useNavigate();
  const [key, setKey] = useState("");
  const [fault, setFault] = useState<string>();
  const [busy, setBusy] = useState(false);
  const used = useRef(false);

  const open = async (body: { api_key: string } | { code: string }) => {
    setBusy(true);
    setFault(undefined);
    try {
      await answered(api.POST("/login", { body }));
      queries.clear();
      await navigate({ href: safeNext(next), replace: true });
    } catch (error) {
      setFault((error as Error).message);
    }
    setBusy(false);
  };

  // biome-ignore lint/correctness/useExhaustiveDependencies: a link works once, so it is used once
  useEffect(() => {
    const code = location.hash.slice(1);
    if (!code || used.current) return;
    used.current = true;
    history.replaceState(null, "", location.pathname + location.search);
    void open({ code });
  }, []);

  return (
    <main className="min-h-full grid place-items-center p-4 bg-bg2">
      <form
        className="panel p-6 w-full max-w-md"
        onSubmit={(event) => {
          event.preventDefault();
          void open({ api_key: key });
        }}
      >
        <h1 className="text-lg font-semibold mb-1">Sign in to moorage</h1>
        <label className="block mt-3 mb-1" htmlFor="key">
          API key
        </label>
        <input
          id="key"
          className="input w-full font-mono"
          type="password"
          autoComplete="current-password"
          required
          value={key}
          onChange={(event) => setKey(event.target.value)}
        />
        {fault && (
          <p role="alert" className="text-bad mt-2 break-words">
            {fault}
          </p>
        )}
        <button type="submit" className="button primary mt-3" disabled={busy}>
          {busy ? "Signing in …" : "Sign in"}
        </button>
        <p className="text-ink2 mt-4">Or make a link that signs in, with the key of your terminal:</p>
        <Snippet>moorage console</Snippet>
      </form>
    </main>
  );
}
