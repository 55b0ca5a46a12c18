import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { deploymentsQuery } from "../api/server";
import { Empty, Pending, Snippet, State, Time, Title } from "../frame/parts";

type Deployment = { id: string; name: string; status?: string; latest_revision_status?: string | null; latest_revision_id?: string | null; active_revision_id?: string | null; active_revision_message?: string | null; source: string; updated_at?: string; created_at?: string; source_config?: { custom_url?: string | null } };

export function DeploymentsPage() {
  const { ws } = useParams({ from: "/o/$ws/deployments" });
  const found = useQuery({ ...deploymentsQuery, refetchInterval: 5_000 });
  const deployments = found.data?.resources as Deployment[] | undefined;
  return (
    <>
      <Title>Deployments</Title>
      {!deployments ? (
        <Pending query={found} what="deployments" />
      ) : deployments.length === 0 ? (
        <Empty title="No agent is deployed yet">
          <p>In the folder of a langgraph.json:</p>
          <Snippet>{`export MOORAGE_URL=${location.origin}\nexport MOORAGE_API_KEY=<your key>\nmoorage deploy`}</Snippet>
        </Empty>
      ) : (
        <section className="overflow-auto" aria-label="Deployments">
          <table className="plain">
            <thead>
              <tr>
                {["Name", "State", "Source", "Changed", "Address", "Talk"].map((name) => (
                  <th key={name} scope="col">{name}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {deployments.map((each) => (
                <tr key={each.id}>
                  <td>{each.name}</td>
                  <td><DeploymentState of={each} /></td>
                  <td>{each.source}</td>
                  <td className="whitespace-nowrap"><Time at={each.updated_at ?? each.created_at} /></td>
                  <td className="font-mono text-xs">{each.source_config?.custom_url}</td>
                  <td>{each.active_revision_id && <Link to="/o/$ws/playground" params={{ ws }} search={{ agent: each.name }}>Playground</Link>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </>
  );
}

/** Whether the deployment serves, and the status of its latest revision if that is another one, as `moorage deployments list` says it. */
function DeploymentState({ of }: { of: Deployment }) {
  const latest = of.latest_revision_status ?? of.status ?? "unknown";
  if (!of.active_revision_id) return <State of={latest} />;
  return (
    <>
      <span title={of.active_revision_message ?? undefined}><State of={of.active_revision_message ? "down" : (of.status ?? "unknown")} /></span>
      {of.active_revision_id !== of.latest_revision_id && <> latest: <State of={latest} /></>}
    </>
  );
}
