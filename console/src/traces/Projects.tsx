import { Link, useParams } from "@tanstack/react-router";
import { useDeferredValue, useState } from "react";
import { useProjects } from "../api/server";
import { Empty, Pending, Snippet, Time, Title } from "../frame/parts";
import { bytes, count, dollars, duration } from "../frame/words";

export const CONNECT = `export LANGSMITH_TRACING=true
export LANGSMITH_ENDPOINT=${location.origin}/api/v1
export LANGSMITH_API_KEY=<your key>
export LANGSMITH_PROJECT=my-agent`;

export function ProjectsPage() {
  const { ws } = useParams({ from: "/o/$ws/projects" });
  const [typed, setTyped] = useState("");
  const projects = useProjects(useDeferredValue(typed));
  return (
    <>
      <Title
        actions={
          <input
            className="input"
            aria-label="Find a project"
            placeholder="Find a project"
            value={typed}
            onChange={(event) => setTyped(event.target.value)}
          />
        }
      >
        Projects
      </Title>
      {!projects.data ? (
        <Pending query={projects} what="projects" />
      ) : projects.data.length === 0 ? (
        <Empty title={typed ? "No project has this in its name" : "No traces yet"}>
          {!typed && (
            <>
              <p>Set these where your agent runs, and each run of it appears here:</p>
              <Snippet>{CONNECT}</Snippet>
            </>
          )}
        </Empty>
      ) : (
        <section className="overflow-auto" aria-label="Projects">
          <table className="plain">
            <thead>
              <tr>
                {["Project", "Last run", "Traces", "Errors", "p50", "p99", "Tokens", "Cost", "On disk"].map((name) => (
                  <th key={name} scope="col">
                    {name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {projects.data.map((project) => (
                <tr key={project.id} className="hover:bg-bg2">
                  <td className="max-w-80 truncate">
                    <Link to="/o/$ws/projects/p/$project" params={{ ws, project: project.id }} search={{}}>
                      {project.name}
                    </Link>
                  </td>
                  <td className="whitespace-nowrap">
                    <Time at={project.last_run_start_time} />
                  </td>
                  <td>{count(project.run_count)}</td>
                  <td className={project.error_rate ? "text-bad" : ""}>
                    {project.error_rate == null ? "–" : `${(project.error_rate * 100).toFixed(1)} %`}
                  </td>
                  <td>{duration(project.latency_p50)}</td>
                  <td>{duration(project.latency_p99)}</td>
                  <td>{count(project.total_tokens)}</td>
                  <td>{dollars(project.total_cost)}</td>
                  <td>{bytes(project.stored_bytes)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </>
  );
}
