import { useState } from "react";
import { Json } from "../frame/Json";
import { visible } from "../frame/words";

/** What a graph asks when it stops, and a form for the answer: approve, reject, or anything else as text or JSON. */
export function Question({ question, onAnswer }: { question: { id?: string; value?: unknown }; onAnswer: (answer: unknown) => void }) {
  const [typed, setTyped] = useState("");
  return (
    <form
      aria-label="The agent asks"
      className="panel border-accent p-3 mt-2 flex flex-col gap-2"
      onSubmit={(event) => {
        event.preventDefault();
        onAnswer(parsed(typed));
      }}
    >
      <p className="font-medium">The agent asks</p>
      {typeof question.value === "string" ? <p className="whitespace-pre-wrap">{visible(question.value)}</p> : <Json value={question.value} label="Question" />}
      <div className="flex flex-wrap gap-2">
        <button type="button" className="button primary" onClick={() => onAnswer("yes")}>
          Approve: yes
        </button>
        <button type="button" className="button" onClick={() => onAnswer("no")}>
          Reject: no
        </button>
        <input className="input flex-1" aria-label="Another answer" placeholder="Another answer, as text or JSON" value={typed} onChange={(event) => setTyped(event.target.value)} />
        <button type="submit" className="button" disabled={!typed}>
          Answer
        </button>
      </div>
    </form>
  );
}

/** JSON where it is JSON, and the text itself where it is not. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
