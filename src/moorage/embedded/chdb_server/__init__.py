"""The process of the embedded trace store: chDB, which is ClickHouse as a library, behind enough of ClickHouse's HTTP
interface for its usual clients. Run as `python -m moorage.embedded.chdb_server`; embedded/clickhouse.py starts it.

It is a process of its own, since only one at a time can have the data, a fault of the library ends its process, and its
memory is bounded as a whole.
"""
