"""The process of the embedded trace store: chDB, which is ClickHouse as a library, behind the part of ClickHouse's HTTP
interface that the usual clients need. Run as `python -m moorage.embedded.chdb_server`; embedded/clickhouse.py starts
it.

It is a separate process for three reasons: only one process at a time can open the data, a crash of the library ends
its process, and the memory of the library can be limited as a whole.
"""
