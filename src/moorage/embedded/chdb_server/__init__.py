"""The process of the embedded trace store: chDB, which is ClickHouse as a library, behind the part of ClickHouse's HTTP
interface that the usual clients need. Run as `python -m moorage.embedded.chdb_server`; embedded/clickhouse.py starts
it.

It is a process of its own because only one process at a time can open the data, because a crash of the library ends its
process, and because this bounds its memory as a whole.
"""
