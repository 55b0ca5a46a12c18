"""Reads the files of an export with DuckDB, straight from the bucket: python query_export.py s3://bucket/prefix/export_id=…

AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are read from the environment, and AWS_ENDPOINT_URL for a store that is not AWS.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import duckdb

ACCESS = """
CREATE SECRET (TYPE s3, KEY_ID '{AWS_ACCESS_KEY_ID}', SECRET '{AWS_SECRET_ACCESS_KEY}'{endpoint})
"""
QUERY = """
SELECT year, month, day, run_type, count(*) AS runs, epoch_ms(max(end_time - start_time)) AS slowest_ms,
    -- Of the model calls alone: what stands above them counts them again.
    sum(total_tokens) FILTER (run_type = 'llm')::BIGINT AS tokens,
    format('${:.8f}', sum(total_cost) FILTER (run_type = 'llm')) AS cost
FROM read_parquet('{folder}/**/*.parquet', hive_partitioning = true, union_by_name = true)
GROUP BY ALL ORDER BY ALL
"""


def main(folder: str) -> None:
    connection = duckdb.connect()
    if found := find_spec("duckdb_extension_httpfs"):  # from a package; else DuckDB fetches it by itself
        package = Path(found.origin or "").parent
        connection.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
    endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL", ""))
    of_endpoint = f", ENDPOINT '{endpoint.netloc}', URL_STYLE 'path', USE_SSL {endpoint.scheme == 'https'}"
    connection.execute(ACCESS.format_map({**os.environ, "endpoint": of_endpoint if endpoint.netloc else ""}))
    print(connection.sql(QUERY.replace("{folder}", folder)))


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"))
