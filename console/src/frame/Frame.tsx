import * as Dialog from "@radix-ui/react-dialog";
import { useQuery } from "@tanstack/react-query";
import { Link, Outlet, useNavigate, useParams } from "@tanstack/react-router";
import {
  Anchor,
  ChartLine,
  Container,
  FolderOutput,
  House,
  ListTree,
  LogOut,
  Menu,
  MessagesSquare,
  Play,
  Search,
  Settings,
  SunMoon,
} from "lucide-react";
import { useEffect, useState } from "react";
import { answered, api, queries } from "../api/client";
import { useCaller } from "../api/server";
import { Palette } from "./Palette";
import { Problem } from "./parts";
import { toggleTheme } from "./theme";

export const PLACES = [
  { to: "/o/$ws", name: "Home", icon: House },
  { to: "/o/$ws/projects", name: "Traces", icon: ListTree },
  { to: "/o/$ws/threads", name: "Threads", icon: MessagesSquare },
  { to: "/o/$ws/dashboards", name: "Dashboards", icon: ChartLine },
  { to: "/o/$ws/playground", name: "Playground", icon: Play },
  { to: "/o/$ws/deployments", name: "Deployments", icon: Container },
  { to: "/o/$ws/exports", name: "Exports", icon: FolderOutput },
  { to: "/o/$ws/settings", name: "Settings", icon: Settings },
] as const;

export function Frame() {
  const { ws } = useParams({ from: "/o/$ws" });
  const alone = ws === "-"; // the agent server of `moorage dev`: a playground
  const places = alone ? PLACES.filter((place) => place.name === "Playground") : PLACES;
  const [menu, setMenu] = useState(false);
  const [palette, setPalette] = useState(false);

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if ((event.metaKey || event.ctrlKey) && event.key === "k") {
        event.preventDefault();
        setPalette((open) => !open);
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);

  const nav = (
    <nav aria-label="Pages" className="flex flex-col gap-0.5 p-2">
      {places.map(({ to, name, icon: Icon }) => (
        <Link
          key={name}
          to={to}
          params={{ ws }}
          activeOptions={{ exact: name === "Home", includeSearch: false }}
          onClick={() => setMenu(false)}
          className="flex items-center gap-2 rounded px-2 py-1.5 no-underline text-ink2 hover:bg-bg3"
          activeProps={{ className: "bg-accentbg !text-accent font-medium" }}
        >
          <Icon size={16} aria-hidden /> {name}
        </Link>
      ))}
    </nav>
  );
  return (
    <div className="h-full flex flex-col md:flex-row">
      <a href="#page" className="sr-only focus:not-sr-only focus:absolute focus:p-2 focus:bg-bg focus:z-10">
        Skip to the page
      </a>
      <div className="md:w-48 shrink-0 bg-bg2 border-b md:border-b-0 md:border-r border-line flex md:flex-col">
        <div className="flex items-center gap-2 px-3 py-2.5 font-semibold mr-auto md:mr-0">
          <Anchor size={17} className="text-accent" aria-hidden /> moorage
        </div>
        <div className="hidden md:block">{nav}</div>
        <div className="md:mt-auto flex md:flex-col gap-1 p-2 items-center md:items-stretch">
          <button type="button" className="button" onClick={() => setPalette(true)}>
            <Search size={14} aria-hidden /> <span className="max-md:sr-only">Go to …</span>
            <kbd className="ml-auto text-xs text-ink3 max-md:hidden">Ctrl K</kbd>
          </button>
          <button type="button" className="button" onClick={toggleTheme}>
            <SunMoon size={14} aria-hidden /> <span className="max-md:sr-only">Light or dark</span>
          </button>
          {!alone && <SignOut />}
          <Dialog.Root open={menu} onOpenChange={setMenu}>
            <Dialog.Trigger className="button md:hidden" aria-label="Menu">
              <Menu size={16} aria-hidden />
            </Dialog.Trigger>
            <Dialog.Portal>
              <Dialog.Content
                aria-describedby={undefined}
                className="fixed inset-x-0 top-0 z-20 bg-bg border-b border-line shadow-lg p-2"
              >
                <Dialog.Title className="sr-only">Menu</Dialog.Title>
                {nav}
                <Dialog.Close className="button w-full justify-center">Close</Dialog.Close>
              </Dialog.Content>
            </Dialog.Portal>
          </Dialog.Root>
        </div>
      </div>
      <main id="page" tabIndex={-1} className="flex-1 min-w-0 min-h-0 flex flex-col outline-none">
        {alone ? <Outlet /> : <Admitted ws={ws} />}
      </main>
      <Palette open={palette} onOpenChange={setPalette} places={places} ws={ws} />
    </div>
  );
}

/** The page, while the session holds and the server answers; and a line that says so while it does not. */
function Admitted({ ws }: { ws: string }) {
  const caller = useCaller();
  const pulse = useQuery({
    queryKey: ["pulse"],
    queryFn: () => answered(api.GET("/api/v1/auth")),
    refetchInterval: 10_000,
    retry: false,
    staleTime: 0,
  });
  const status = (pulse.error as { status?: number } | null)?.status;
  if (caller.data && caller.data.workspace_id !== ws) return <Problem error={Object.assign(new Error(), {})} />;
  return (
    <>
      {status === 401 && (
        <p role="alert" className="px-4 py-2 bg-badbg text-bad border-b border-bad">
          Your session has ended or its key was revoked. <Link to="/login" search={{ next: location.pathname }}>Sign in again</Link>
        </p>
      )}
      {status !== undefined && status !== 401 && (
        <p role="status" className="px-4 py-2 bg-bg3 text-wait border-b border-line">
          The server does not answer; it may be restarting. This page goes on by itself when it is back.
        </p>
      )}
      <Outlet />
    </>
  );
}

function SignOut() {
  const navigate = useNavigate();
  return (
    <button
      type="button"
      className="button"
      onClick={async () => {
        await answered(api.DELETE("/login"));
        queries.clear();
        await navigate({ to: "/login", search: {} });
      }}
    >
      <LogOut size={14} aria-hidden /> <span className="max-md:sr-only">Sign out</span>
    </button>
  );
}
