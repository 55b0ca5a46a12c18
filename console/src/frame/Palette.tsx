import * as Dialog from "@radix-ui/react-dialog";
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { projectsQuery } from "../api/server";
import type { PLACES } from "./Frame";

type Props = { open: boolean; onOpenChange: (open: boolean) => void; places: readonly (typeof PLACES)[number][]; ws: string };

/** Pages, projects and runs by what is typed: Ctrl K. */
export function Palette({ open, onOpenChange, places, ws }: Props) {
  const [typed, setTyped] = useState("");
  const [at, setAt] = useState(0);
  const navigate = useNavigate();
  const projects = useQuery({ ...projectsQuery(), enabled: open && ws !== "-" });
  const word = typed.trim().toLowerCase();
  const choices = [
    ...places.map((place) => ({ name: place.name, kind: "page", go: () => navigate({ to: place.to, params: { ws } }) })),
    ...(projects.data ?? []).map((project) => ({
      name: project.name,
      kind: "project",
      go: () => navigate({ to: "/o/$ws/projects/p/$project", params: { ws, project: project.id }, search: {} }),
    })),
  ].filter((choice) => choice.name.toLowerCase().includes(word));
  const chosen = Math.min(at, choices.length - 1);
  const go = (index: number) => {
    onOpenChange(false);
    setTyped("");
    void choices[index]?.go();
  };
  return (
    <Dialog.Root open={open} onOpenChange={onOpenChange}>
      <Dialog.Portal>
        <Dialog.Overlay className="fixed inset-0 bg-black/40 z-20" />
        <Dialog.Content aria-describedby={undefined} className="fixed z-30 top-[12%] left-1/2 -translate-x-1/2 w-[min(34rem,92vw)] panel shadow-xl">
          <Dialog.Title className="sr-only">Go to</Dialog.Title>
          <input
            className="w-full p-3 bg-transparent outline-none border-b border-line"
            placeholder="Page or project"
            aria-label="Page or project"
            role="combobox"
            aria-expanded
            aria-controls="choices"
            aria-activedescendant={chosen >= 0 ? `choice-${chosen}` : undefined}
            value={typed}
            onChange={(event) => {
              setTyped(event.target.value);
              setAt(0);
            }}
            onKeyDown={(event) => {
              if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, choices.length - 1));
              else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
              else if (event.key === "Enter") go(chosen);
              else return;
              event.preventDefault();
            }}
          />
          <div id="choices" role="listbox" aria-label="Places" className="max-h-80 overflow-auto p-1">
            {choices.map((choice, index) => (
              <div
                key={`${choice.kind} ${choice.name}`}
                id={`choice-${index}`}
                role="option"
                tabIndex={-1}
                aria-selected={index === chosen}
                className={`flex px-3 py-1.5 rounded cursor-pointer ${index === chosen ? "bg-accentbg" : ""}`}
                onClick={() => go(index)}
                onKeyDown={() => undefined}
              >
                <span className="truncate">{choice.name}</span>
                <span className="ml-auto text-ink3">{choice.kind}</span>
              </div>
            ))}
          </div>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
