import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answered, api } from "../api/client";
import { useCaller } from "../api/server";
import { CopyButton, Id, Pending, Time, Title } from "../frame/parts";

export function SettingsPage() {
  return (
    <>
      <Title>Settings</Title>
      <div className="overflow-auto p-4 flex flex-col gap-4">
        <Session />
        <Keys />
        <Prices />
      </div>
    </>
  );
}

function Session() {
  const caller = useCaller();
  if (!caller.data) return <Pending query={caller} what="your session" />;
  return (
    <section className="panel p-3" aria-label="Session">
      <h2 className="font-medium mb-1">Who you are</h2>
      <p className="flex flex-wrap gap-x-4">
        <span>Workspace <Id value={caller.data.workspace_id} label="workspace id" /></span>
        <span className="font-mono text-xs break-all">{caller.data.actor}</span>
      </p>
      <p className="text-ink2 mt-1">{caller.data.scopes.join(", ")}</p>
    </section>
  );
}

function Keys() {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [readOnly, setReadOnly] = useState(false);
  const keys = useQuery({ queryKey: ["keys"], queryFn: () => answered(api.GET("/api/v1/api-key")) });
  const done = () => client.invalidateQueries({ queryKey: ["keys"] });
  const make = useMutation({
    mutationFn: () => answered(api.POST("/api/v1/api-key", { body: { description: name, read_only: readOnly } })),
    onSuccess: () => {
      setName("");
      return done();
    },
  });
  const revoke = useMutation({
    mutationFn: (id: string) => answered(api.DELETE("/api/v1/api-key/{api_key_id}", { params: { path: { api_key_id: id } } })),
    onSuccess: done,
  });
  return (
    <section className="panel p-3" aria-label="API keys">
      <h2 className="font-medium mb-2">API keys</h2>
      <form
        className="flex flex-wrap gap-2 items-center mb-2"
        onSubmit={(event) => {
          event.preventDefault();
          make.mutate();
        }}
      >
        <input className="input" aria-label="What the key is for" placeholder="What the key is for" required maxLength={128} value={name} onChange={(event) => setName(event.target.value)} />
        <label className="inline-flex items-center gap-1">
          <input type="checkbox" checked={readOnly} onChange={(event) => setReadOnly(event.target.checked)} /> reads only
        </label>
        <button type="submit" className="button primary" disabled={make.isPending}>
          Make a key
        </button>
      </form>
      {make.data && (
        <p role="status" className="panel bg-accentbg p-2 mb-2 break-all">
          Keep this key, it is shown this once: <code className="font-mono">{make.data.key}</code> <CopyButton text={make.data.key} label="key" />
        </p>
      )}
      {(make.error ?? revoke.error) && <p role="alert" className="text-bad mb-2">{(make.error ?? revoke.error)?.message}</p>}
      {!keys.data ? (
        <Pending query={keys} what="keys" />
      ) : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls has to be reached by keyboard
        <div className="overflow-x-auto relative" tabIndex={0} role="region" aria-label="List of keys">
          <table className="plain">
            <thead>
              <tr>
                {["Name", "Key", "Rights", "Made", "Last used", "Expires", ""].map((head) => (
                  <th key={head} scope="col">{head || <span className="sr-only">Actions</span>}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {keys.data.map((key) => (
                <tr key={key.id}>
                  <td>{key.description}</td>
                  <td className="font-mono text-xs whitespace-nowrap">{key.short_key}</td>
                  <td className="text-ink2">{key.read_only ? "reads only" : `${key.scopes.length} scopes`}</td>
                  <td className="whitespace-nowrap"><Time at={key.created_at} /></td>
                  <td className="whitespace-nowrap"><Time at={key.last_used_at} /></td>
                  <td className="whitespace-nowrap">{key.expires_at ? <Time at={key.expires_at} /> : "never"}</td>
                  <td>
                    <button
                      type="button"
                      className="button"
                      aria-label={`Revoke ${key.description}`}
                      onClick={() => confirm(`Revoke "${key.description}"? Whoever uses it is refused within 2 seconds.`) && revoke.mutate(key.id)}
                    >
                      Revoke
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Prices() {
  const prices = useQuery({ queryKey: ["prices"], queryFn: () => answered(api.GET("/api/v1/model-price-map")) });
  if (!prices.data) return <Pending query={prices} what="prices" />;
  return (
    <details className="panel p-3">
      <summary className="font-medium">Prices of models ({prices.data.length})</summary>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: as above */}
      <div className="overflow-x-auto" tabIndex={0} role="region" aria-label="List of prices">
        <table className="plain">
          <thead>
            <tr>
              <th scope="col">Model</th>
              <th scope="col">Prompt, $ per 1M</th>
              <th scope="col">Completion, $ per 1M</th>
            </tr>
          </thead>
          <tbody>
            {prices.data.map((price) => (
              <tr key={price.id}>
                <td>{price.name}</td>
                <td>{Math.round(Number(price.prompt_cost) * 1e10) / 1e4}</td>
                <td>{Math.round(Number(price.completion_cost) * 1e10) / 1e4}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}
