import { useQuery } from "@tanstack/react-query";
import { answered, api } from "../api/client";
import { Empty, Id, Pending, Snippet, State, Time, Title } from "../frame/parts";

export function ExportsPage() {
  const found = useQuery({ queryKey: ["exports"], queryFn: () => answered(api.GET("/api/v1/bulk-exports")), refetchInterval: 5_000 });
  return (
    <>
      <Title>Exports</Title>
      {!found.data ? (
        <Pending query={found} what="exports" />
      ) : found.data.length === 0 ? (
        <Empty title="Nothing was exported yet">
          <Snippet>{"moorage destinations create lake --bucket my-bucket --prefix traces\nmoorage exports create my-project --to lake --start 2026-01-01"}</Snippet>
        </Empty>
      ) : (
        <section className="overflow-auto" aria-label="Exports">
          <table className="plain">
            <thead>
              <tr>
                {["Export", "State", "From", "Until", "Every", "Made", "Ended"].map((name) => (
                  <th key={name} scope="col">{name}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {found.data.map((each) => (
                <tr key={each.id}>
                  <td><Id value={each.id} label="export id" /></td>
                  <td><State of={each.status} /></td>
                  <td className="whitespace-nowrap">{each.start_time?.slice(0, 10)}</td>
                  <td className="whitespace-nowrap">{each.end_time?.slice(0, 10) ?? "–"}</td>
                  <td>{each.interval_hours ? `${each.interval_hours} h` : "once"}</td>
                  <td className="whitespace-nowrap"><Time at={each.created_at} /></td>
                  <td className="whitespace-nowrap"><Time at={each.finished_at} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </>
  );
}
