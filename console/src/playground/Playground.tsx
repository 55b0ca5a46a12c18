import type { Checkpoint, ThreadState } from "@langchain/langgraph-sdk";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { GitFork, Plus, Send, Square } from "lucide-react";
import { useMemo, useRef, useState } from "react";
import { deploymentsQuery, projectsQuery } from "../api/server";
import { Json } from "../frame/Json";
import { Empty, Pending, Problem, Snippet, Time, Title } from "../frame/parts";
import { visible } from "../frame/words";
import { Messages } from "../traces/Messages";
import { type Message, messageOf, messagesOf } from "../traces/messages";
import { AssistantForm } from "./AssistantForm";
import { clientOf } from "./agent";
import { added, differences } from "./differences";
import { GraphPicture } from "./GraphPicture";
import { Question } from "./Question";

export function PlaygroundPage() {
  const { ws } = useParams({ from: "/o/$ws/playground" });
  const search = useSearch({ from: "/o/$ws/playground" });
  const navigate = useNavigate({ from: "/o/$ws/playground" });
  const deployed = useQuery({ ...deploymentsQuery, enabled: ws !== "-" });
  const agents = (deployed.data?.resources ?? []) as { name: string }[];
  const agent = search.agent ?? agents[0]?.name;
  if (ws === "-") return <Agent key="here" agent={undefined} />;
  return (
    <>
      {agents.length > 0 && (
        <div className="px-4 pt-2">
          <select className="input" aria-label="Agent" value={agent} onChange={(event) => navigate({ search: { agent: event.target.value } })}>
            {agents.map((each) => (
              <option key={each.name}>{each.name}</option>
            ))}
          </select>
        </div>
      )}
      {agent ? (
        <Agent key={agent} agent={agent} />
      ) : deployed.data ? (
        <Empty title="No agent is deployed yet">
          <p>Deploy one, or talk to the graph that you are writing:</p>
          <Snippet>moorage dev</Snippet>
        </Empty>
      ) : (
        <Pending query={deployed} what="agents" />
      )}
    </>
  );
}

type Values = Record<string, unknown>;
const PROJECT_AGAIN_MS = 3_000;

/** The run in which a message came: that of the first checkpoint which has so many. Its trace has the same id. */
function runOf(states: ThreadState<Values>[], index: number): string | undefined {
  const first = states.findLast((state) => messagesOf(state.values).length > index);
  const run = (first?.metadata as Values | undefined)?.run_id;
  return typeof run === "string" ? run : undefined;
}

function Agent({ agent }: { agent: string | undefined }) {
  const { ws } = useParams({ from: "/o/$ws/playground" });
  const projects = useQuery({
    ...projectsQuery(agent ?? ""),
    enabled: !!agent,
    // An agent's project is there after its first trace.
    refetchInterval: (query) => (query.state.data?.some((each) => each.name === agent) ? false : PROJECT_AGAIN_MS),
  });
  const project = projects.data?.find((each) => each.name === agent)?.id;
  const search = useSearch({ from: "/o/$ws/playground" });
  const navigate = useNavigate({ from: "/o/$ws/playground" });
  const cache = useQueryClient();
  const client = useMemo(() => clientOf(agent), [agent]);
  const assistants = useQuery({ queryKey: ["assistants", agent], queryFn: () => client.assistants.search({ limit: 100 }), retry: 1 });
  const assistant = search.assistant ?? assistants.data?.[0]?.assistant_id;
  const chosen = assistants.data?.find((each) => each.assistant_id === assistant);
  const graph = useQuery({ queryKey: ["graph", agent, assistant], enabled: !!assistant, queryFn: () => client.assistants.getGraph(assistant as string) });
  const thread = search.thread;
  const history = useQuery({
    queryKey: ["history", agent, thread],
    enabled: !!thread,
    queryFn: () => client.threads.getHistory<Values>(thread as string, { limit: 100 }),
  });
  const stop = useRef<AbortController | null>(null);
  const [streamed, setStreamed] = useState<Message[] | null>(null);
  const [active, setActive] = useState<string[]>([]);
  const [fault, setFault] = useState<string>();
  const states = history.data ?? [];
  const at = Math.max(0, states.findIndex((state) => state.checkpoint?.checkpoint_id === search.checkpoint));
  const state = states[at];
  const go = (next: Partial<typeof search>) => navigate({ search: (old) => ({ ...old, ...next }) });

  /** Runs the graph on the thread, from the chosen checkpoint if one is chosen, and shows what it says as it comes. */
  const run = async (payload: { input?: Values | null; command?: { resume: unknown } }) => {
    if (!assistant) return;
    setFault(undefined);
    const control = new AbortController();
    stop.current = control;
    const shown = new Map<string, Message>();
    setStreamed([]);
    try {
      const id = thread ?? (await client.threads.create()).thread_id;
      if (!thread) await go({ thread: id });
      const from = search.checkpoint ? { checkpointId: search.checkpoint } : {};
      const parts = client.runs.stream(id, assistant, {
        ...payload,
        ...from,
        streamMode: ["messages-tuple", "updates"],
        onDisconnect: "cancel",
        signal: control.signal,
      });
      for await (const part of parts) {
        if (part.event === "messages") {
          const [chunk, facts] = part.data as [Values, Values];
          const message = messageOf(chunk);
          if (message) {
            const key = String(chunk.id);
            const old = shown.get(key);
            shown.set(key, old && String(chunk.type).endsWith("Chunk") ? { ...old, text: old.text + message.text, calls: [...old.calls, ...message.calls] } : message);
            setStreamed([...shown.values()]);
          }
          if (facts?.langgraph_node) setActive([String(facts.langgraph_node)]);
        } else if (part.event === "updates") setActive(Object.keys(part.data as Values));
        else if (part.event === "error") setFault(String((part.data as Values).message ?? JSON.stringify(part.data)));
      }
      // What was chosen while the agent worked stays chosen.
      await navigate({ search: (old) => (old.checkpoint === search.checkpoint ? { ...old, checkpoint: undefined } : old) });
    } catch (error) {
      if (!control.signal.aborted) setFault((error as Error).message);
    }
    stop.current = null;
    setActive([]);
    await cache.invalidateQueries({ queryKey: ["history", agent] });
    setStreamed(null);
  };

  if (assistants.error) return <Problem error={assistants.error} again={() => assistants.refetch()} />;
  if (!assistants.data) return <Pending query={assistants} what="assistants" />;
  const busy = streamed !== null;
  const questions = state?.tasks?.flatMap((task) => task.interrupts ?? []) ?? [];
  return (
    <>
      <Title
        actions={
          <>
            <select className="input" aria-label="Assistant" value={assistant} onChange={(event) => go({ assistant: event.target.value, thread: undefined, checkpoint: undefined })}>
              {assistants.data.map((each) => (
                <option key={each.assistant_id} value={each.assistant_id}>
                  {each.name && each.name !== each.graph_id ? `${each.name} (${each.graph_id})` : each.graph_id}
                </option>
              ))}
            </select>
            <button type="button" className="button" onClick={() => go({ thread: undefined, checkpoint: undefined })}>
              <Plus size={14} aria-hidden /> New thread
            </button>
          </>
        }
      >
        Playground
      </Title>
      <div className="flex-1 min-h-0 overflow-auto lg:overflow-hidden grid grid-cols-1 lg:grid-cols-[minmax(0,1.2fr)_minmax(0,1fr)]">
        <div className="flex flex-col min-h-80 lg:min-h-0">
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls has to be reached by keyboard */}
          <div className="flex-1 overflow-auto p-3" role="region" aria-label="Conversation" aria-live="polite" tabIndex={0}>
            {!thread && !busy && <p className="text-ink2">Say something, or send the input of the graph as JSON.</p>}
            <Messages
              of={[...messagesOf(state?.values), ...(streamed ?? [])]}
              more={(index) => {
                const made = runOf(states.slice(at), index);
                return project && made && (
                  <Link to="/o/$ws/projects/p/$project/r/$run" params={{ ws, project, run: made }} search={{ trace_id: made }}>Its trace</Link>
                );
              }}
            />
            {state && messagesOf(state.values).length === 0 && <Json key={state.checkpoint?.checkpoint_id} value={state.values} label="State" />}
            {busy && (
              <p role="status" className="text-wait mt-2">
                The agent works{active.length ? `: ${active.map(visible).join(", ")}` : ""} …
              </p>
            )}
            {!busy && questions.map((question, index) => <Question key={question.id ?? index} question={question} onAnswer={(answer) => run({ command: { resume: questions.length > 1 && question.id ? { [question.id]: answer } : answer } })} />)}
            {fault && <p role="alert" className="text-bad mt-2 whitespace-pre-wrap break-words">{visible(fault)}</p>}
          </div>
          <Input busy={busy} onSend={(input) => run({ input })} onStop={() => stop.current?.abort()} forks={!!search.checkpoint} />
        </div>
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: as above */}
        <div className="overflow-auto p-3 border-t lg:border-t-0 lg:border-l border-line flex flex-col gap-3" role="region" aria-label="Graph and checkpoints" tabIndex={0}>
          {graph.data && <GraphPicture graph={graph.data as never} active={busy ? active : (state?.next ?? [])} />}
          {chosen && (
            <AssistantForm
              key={chosen.assistant_id}
              client={client}
              assistant={chosen}
              onSaved={async (id) => {
                await cache.invalidateQueries({ queryKey: ["assistants", agent] });
                await go({ assistant: id });
              }}
            />
          )}
          {thread && state && (
            <Edit
              key={state.checkpoint?.checkpoint_id}
              state={state}
              onSave={async (values) => {
                await client.threads.updateState(thread, { values, checkpoint: state.checkpoint as Checkpoint });
                await go({ checkpoint: undefined });
                await cache.invalidateQueries({ queryKey: ["history", agent] });
              }}
            />
          )}
          <Checkpoints states={states} at={at} live={!busy} onChoose={(id) => go({ checkpoint: id })} />
        </div>
      </div>
    </>
  );
}

function Input({ busy, onSend, onStop, forks }: { busy: boolean; onSend: (input: Values) => void; onStop: () => void; forks: boolean }) {
  const [typed, setTyped] = useState("");
  const [fault, setFault] = useState<string>();
  const send = () => {
    const text = typed.trim();
    if (!text || busy) return;
    try {
      onSend(text.startsWith("{") ? JSON.parse(text) : { messages: [{ role: "user", content: text }] });
      setTyped("");
      setFault(undefined);
    } catch {
      setFault("This begins like JSON and is none; correct it, or begin with a word.");
    }
  };
  return (
    <form
      className="border-t border-line p-2 flex flex-wrap gap-2"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        className="input flex-1 min-h-16"
        aria-label="Message, or input as JSON"
        placeholder={forks ? "Goes on from the chosen checkpoint" : "Message, or input as JSON"}
        value={typed}
        onChange={(event) => setTyped(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey) {
            event.preventDefault();
            send();
          }
        }}
      />
      {busy ? (
        <button type="button" className="button" onClick={onStop}>
          <Square size={14} aria-hidden /> Stop
        </button>
      ) : (
        <button type="submit" className="button primary">
          {forks ? <GitFork size={14} aria-hidden /> : <Send size={14} aria-hidden />} {forks ? "Fork" : "Send"}
        </button>
      )}
      {fault && <p role="alert" className="w-full text-bad">{fault}</p>}
    </form>
  );
}

function Edit({ state, onSave }: { state: ThreadState<Values>; onSave: (values: Values) => Promise<void> }) {
  const [typed, setTyped] = useState("{}");
  const [fault, setFault] = useState<string>();
  return (
    <details className="panel p-2">
      <summary className="font-medium">Change the state</summary>
      <p className="text-ink2">Values by channel, as a node would return them. It makes a checkpoint after {state.checkpoint?.checkpoint_id?.slice(0, 13)}.</p>
      <textarea className="input w-full font-mono min-h-20" aria-label="Values by channel" value={typed} onChange={(event) => setTyped(event.target.value)} />
      <button
        type="button"
        className="button"
        onClick={async () => {
          try {
            setFault(undefined);
            await onSave(JSON.parse(typed));
          } catch (error) {
            setFault((error as Error).message);
          }
        }}
      >
        Save
      </button>
      {fault && <p role="alert" className="text-bad">{fault}</p>}
    </details>
  );
}

/** Newest first, each with the channels that it changed. `live`: the newest is where the thread stands, and no choice. */
function Checkpoints({ states, at, live, onChoose }: { states: ThreadState<Values>[]; at: number; live: boolean; onChoose: (id: string | undefined) => void }) {
  return (
    <section aria-label="Checkpoints">
      <h2 className="font-medium mb-1">Checkpoints</h2>
      {states.length === 0 && <p className="text-ink2">Each step of a run leaves one here.</p>}
      <ol className="flex flex-col gap-1">
        {states.map((state, index) => {
          const parent = states.find((other) => other.checkpoint?.checkpoint_id === state.parent_checkpoint?.checkpoint_id);
          const changes = differences(parent?.values, state.values);
          return (
            <li key={state.checkpoint?.checkpoint_id ?? index} className={`panel p-2 ${index === at ? "bg-accentbg" : ""}`}>
              <button type="button" aria-pressed={index === at} className="flex flex-wrap gap-x-3 text-left w-full" onClick={() => onChoose(index || !live ? (state.checkpoint?.checkpoint_id ?? undefined) : undefined)}>
                <span className="font-medium">step {String((state.metadata as Values)?.step ?? "?")}</span>
                <span>{state.next.length ? `next: ${state.next.map(visible).join(", ")}` : "end"}</span>
                <span className="text-ink2">{changes.map((change) => visible(change.channel)).join(", ") || "no change"}</span>
                <span className="ml-auto text-ink2"><Time at={state.created_at} /></span>
              </button>
              {index === at && changes.map((change) => <Json key={change.channel} label={visible(change.channel)} value={added(change)} />)}
            </li>
          );
        })}
      </ol>
    </section>
  );
}
