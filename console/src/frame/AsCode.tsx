import * as Dialog from "@radix-ui/react-dialog";
import { Code } from "lucide-react";
import { Snippet } from "./parts";

type Props = { method: string; path: string; body?: unknown; cli: string };

/** What this page asked the API, to be asked from a terminal or a program. */
export function AsCode({ method, path, body, cli }: Props) {
  const json = body === undefined ? "" : JSON.stringify(body, null, 2);
  const curl = `curl ${method === "GET" ? "" : `-X ${method} `}"$MOORAGE_URL${path}" -H "X-Api-Key: $MOORAGE_API_KEY"${
    json ? ` \\\n  -H "Content-Type: application/json" -d '${json.replaceAll("'", "'\\''")}'` : ""
  }`;
  const python = `import os, json, httpx

api = httpx.Client(base_url=os.environ["MOORAGE_URL"], headers={"X-Api-Key": os.environ["MOORAGE_API_KEY"]})
answer = api.request(${JSON.stringify(method)}, ${JSON.stringify(path)}${json ? `, json=json.loads(r'''${json}''')` : ""})
print(answer.raise_for_status().json())`;
  return (
    <Dialog.Root>
      <Dialog.Trigger className="button">
        <Code size={14} aria-hidden /> As code
      </Dialog.Trigger>
      <Dialog.Portal>
        <Dialog.Overlay className="fixed inset-0 bg-black/40 z-20" />
        <Dialog.Content
          aria-describedby={undefined}
          className="fixed z-30 inset-x-2 md:inset-x-[15%] top-[8%] max-h-[84%] overflow-auto panel p-4"
        >
          <Dialog.Title className="font-semibold">This page as code</Dialog.Title>
          <h2 className="mt-3 text-ink2">moorage</h2>
          <Snippet>{cli}</Snippet>
          <h2 className="mt-3 text-ink2">curl</h2>
          <Snippet>{curl}</Snippet>
          <h2 className="mt-3 text-ink2">Python</h2>
          <Snippet>{python}</Snippet>
          <Dialog.Close className="button mt-2">Close</Dialog.Close>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
