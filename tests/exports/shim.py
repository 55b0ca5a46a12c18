async def ensure_first_ingested(clickhouse):
    from pathlib import Path
    sql = Path("src/moorage/schema/clickhouse/0001_traces.sql").read_text()
    if "first_ingested_at" not in sql:
        await clickhouse.command("ALTER TABLE trace_run_rows ADD COLUMN IF NOT EXISTS first_ingested_at SimpleAggregateFunction(min, Nullable(DateTime64(6,'UTC'))) DEFAULT ingested_at")
        view = sql[sql.index("CREATE VIEW IF NOT EXISTS trace_runs"):]
        view = view[:view.index(";")]
        await clickhouse.command(view.replace("CREATE VIEW IF NOT EXISTS", "CREATE OR REPLACE VIEW").replace("    ingested_at\nFROM", "    ingested_at, first_ingested_at\nFROM"))
