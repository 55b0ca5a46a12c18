import type { ReactNode } from "react";
import { visible } from "../frame/words";
import type { Message } from "./messages";

type Props = { of: Message[]; more?: (index: number) => ReactNode };

/** Messages as a chat, each with what the page has `more` to say of it. Everything in them is text: nothing is rendered as markup, no link is live. */
export function Messages({ of, more }: Props) {
  return (
    <ol className="flex flex-col gap-2">
      {of.map((message, index) => (
        <li key={index} className={`panel p-2 ${message.role === "user" ? "bg-accentbg" : "bg-bg2"}`}>
          <p className="text-ink2 text-xs font-medium flex gap-2">
            <span className="mr-auto">
              {visible(message.role)}
              {message.name ? ` · ${visible(message.name)}` : ""}
            </span>
            {more?.(index)}
          </p>
          {message.text && <p className="whitespace-pre-wrap break-words">{visible(message.text.slice(0, 100_000))}</p>}
          {message.calls.map((call, at) => (
            <div key={call.id ?? at} className="font-mono text-xs mt-1 border-l-2 border-line pl-2">
              <span className="font-semibold">calls {visible(call.name)}</span>
              <pre className="whitespace-pre-wrap break-words">
                {visible(typeof call.args === "string" ? call.args : JSON.stringify(call.args, null, 1) || "")}
              </pre>
            </div>
          ))}
        </li>
      ))}
    </ol>
  );
}
