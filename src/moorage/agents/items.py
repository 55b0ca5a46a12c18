"""The long-term store: LangGraph's `BaseStore` on PostgreSQL, for graphs and for the API alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import structlog
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    NamespaceMatchType,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    get_text_at_path,
    tokenize_path,
)

from moorage.agents.embeddings import Embedder
from moorage.agents.langgraph_json import StoreConfig
from moorage.agents.principals import Principal
from moorage.agents.records import items as records
from moorage.agents.records.filters import EVERYTHING
from moorage.agents.records.items import ItemDelete, ItemPut, ItemSearch, NamespaceSearch
from moorage.agents.store.items import ItemQuery, ItemStore, ItemWrite, Match
from moorage.kernel.errors import ForbiddenError, InvalidRequestError

log = structlog.get_logger(__name__)

_SWEPT_AT_ONCE = 10_000


class LongTermStore(BaseStore):
    """The long-term store of agents, shared by all threads. Reads skip expired items that no sweep has deleted yet."""

    supports_ttl = True

    def __init__(self, store: ItemStore, config: StoreConfig, embedder: Embedder | None) -> None:
        self._store = store
        self._embedder = embedder
        self._fields = (config.index.fields if config.index else None) or ["$"]
        self._loop = asyncio.get_running_loop()
        self.default_ttl = config.ttl.default_ttl
        self._refresh_on_read = config.ttl.refresh_on_read
        # BaseStore reads its defaults from here.
        self.ttl_config: TTLConfig | None = {
            "default_ttl": self.default_ttl,
            "refresh_on_read": self._refresh_on_read,
        }

    def refreshes(self, *, asked_for: bool | None) -> bool:
        """Return True if a read renews the item's time to live."""
        return self._refresh_on_read if asked_for is None else asked_for

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run the operations from synchronous nodes and tools, which run in threads of their own."""
        try:
            if asyncio.get_running_loop() is self._loop:
                raise asyncio.InvalidStateError(
                    "A synchronous call of the store would block the server: use the asynchronous one (await store.aget(...))"
                )
        except RuntimeError:
            pass  # no loop runs in this thread
        return asyncio.run_coroutine_threadsafe(self.abatch(ops), self._loop).result()

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run the operations. Reads see the state before the batch. Writes are made together; the last write of an item
        wins.
        """
        results: list[Result] = []
        writes: dict[tuple[tuple[str, ...], str], PutOp] = {}
        for op in ops:
            _check(op)
            if isinstance(op, PutOp):
                writes[op.namespace, op.key] = op
                results.append(None)
            else:
                results.append(await self._read(op))
        if writes:
            await self._store.write(await self._with_vectors(list(writes.values())))
        return results

    async def sweep(self) -> None:
        """Delete expired items."""
        while await self._store.sweep(_SWEPT_AT_ONCE) == _SWEPT_AT_ONCE:
            log.info("more items are swept")

    async def _read(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            row = await self._store.read(op.namespace, op.key, refresh=op.refresh_ttl)
            return None if row is None else Item(**_fields_of(row))
        if isinstance(op, SearchOp):
            return await self._search(op)
        if isinstance(op, ListNamespacesOp):
            matches = [Match(tuple(each.path), each.match_type == "suffix") for each in op.match_conditions or ()]
            found = await self._store.namespaces(matches, max_depth=op.max_depth, limit=op.limit, offset=op.offset)
            return [tuple(namespace) for namespace in found]
        raise InvalidRequestError(f"Unknown operation of the store: {type(op).__name__}")

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        """Search by meaning if there is a query and an index. Items without vectors fill the remaining places."""
        query = ItemQuery(op.namespace_prefix, op.filter or {}, op.limit, op.offset, op.refresh_ttl)
        if not op.query or self._embedder is None:
            rows = await self._store.search(query)
        else:
            rows = await self._store.search_near(query, await self._embedder.of_query(op.query))
            if left := op.limit - len(rows):
                rest = ItemQuery(op.namespace_prefix, op.filter or {}, left, 0, op.refresh_ttl)
                rows += await self._store.search(rest, scoreless=True)
        return [SearchItem(**_fields_of(row), score=row["score"]) for row in rows]

    async def _with_vectors(self, ops: Sequence[PutOp]) -> list[ItemWrite]:
        texts = [self._texts(op) for op in ops]
        wanted = list(dict.fromkeys(text for fields in texts for text in fields.values()))
        vectors = (
            dict(zip(wanted, await self._embedder.of_texts(wanted), strict=True)) if self._embedder and wanted else {}
        )
        return [
            ItemWrite(op.namespace, op.key, op.value, op.ttl, {name: vectors[text] for name, text in fields.items()})
            for op, fields in zip(ops, texts, strict=True)
        ]

    def _texts(self, op: PutOp) -> dict[str, str]:
        """Return the texts of a value to index, each by its path."""
        if self._embedder is None or op.value is None or op.index is False:
            return {}
        found: dict[str, str] = {}
        for path in self._fields if op.index is None else op.index:
            texts = get_text_at_path(op.value, path if path == "$" else tokenize_path(path))
            found |= {path if len(texts) == 1 else f"{path}.{number}": text for number, text in enumerate(texts)}
        return found


class Items:
    """The long-term store as the API shows it. A project's handlers separate users by namespace."""

    def __init__(self, store: LongTermStore) -> None:
        self._store = store

    async def put(self, who: Principal, new: ItemPut) -> None:
        """Store an item. Raises BadRequestError, InvalidRequestError or EmbeddingError, and then stores nothing."""
        ttl = new.ttl if "ttl" in new.model_fields_set else self._store.default_ttl
        asked = await _allowed(
            who, "put", namespace=tuple(new.namespace), key=new.key, value=new.value, index=new.index
        )
        await self._store.abatch([PutOp(asked["namespace"], asked["key"], asked["value"], asked["index"], ttl)])

    async def get(
        self, who: Principal, namespace: tuple[str, ...], key: str, *, refresh: bool | None
    ) -> records.Item | None:
        asked = await _allowed(who, "get", namespace=namespace, key=key)
        [found] = await self._store.abatch(
            [GetOp(asked["namespace"], asked["key"], self._store.refreshes(asked_for=refresh))]
        )
        return None if found is None else _shown(cast(Item, found))

    async def delete(self, who: Principal, gone: ItemDelete) -> None:
        asked = await _allowed(who, "delete", namespace=tuple(gone.namespace), key=gone.key)
        await self._store.abatch([PutOp(asked["namespace"], asked["key"], None)])

    async def search(self, who: Principal, search: ItemSearch) -> list[records.FoundItem]:
        asked = await _allowed(
            who,
            "search",
            namespace=tuple(search.namespace_prefix or ()),
            filter=search.filter,
            limit=search.limit,
            offset=search.offset,
            query=search.query,
        )
        refresh = self._store.refreshes(asked_for=search.refresh_ttl)
        [found] = await self._store.abatch(
            [SearchOp(asked["namespace"], asked["filter"], asked["limit"], asked["offset"], asked["query"], refresh)]
        )
        return [{**_shown(item), "score": item.score} for item in cast(list[SearchItem], found)]

    async def namespaces(self, who: Principal, search: NamespaceSearch) -> list[tuple[str, ...]]:
        asked = await _allowed(
            who,
            "list_namespaces",
            namespace=tuple(search.prefix or ()) or None,
            suffix=tuple(search.suffix or ()) or None,
            max_depth=search.max_depth,
            limit=search.limit,
            offset=search.offset,
        )
        wanted: list[tuple[NamespaceMatchType, Any]] = [("prefix", asked["namespace"]), ("suffix", asked["suffix"])]
        conditions = tuple(MatchCondition(kind, tuple(path)) for kind, path in wanted if path)
        [found] = await self._store.abatch(
            [ListNamespacesOp(conditions or None, asked["max_depth"], asked["limit"], asked["offset"])]
        )
        return cast(list[tuple[str, ...]], found)


async def _allowed(who: Principal, action: str, **asked: Any) -> dict[str, Any]:
    """Return the request as the project's handler leaves it: a handler separates users by changing the namespace.

    Raises ForbiddenError when the handler returns a filter. Items have no metadata that a filter could match, and
    ignoring the filter would drop a protection.
    """
    seen = await who.may("store", action, asked)
    if seen != EVERYTHING:
        raise ForbiddenError(
            "The handler of store returned a filter, which items have no metadata for: let it change value['namespace']"
        )
    return {**asked, "namespace": tuple(asked["namespace"]) if asked["namespace"] else asked["namespace"]}


def _shown(item: Item) -> records.Item:
    return {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": item.created_at,
        "updated_at": item.updated_at,
    }


def _check(op: Op) -> None:
    """Check that an operation names a valid item or namespace. Raises BadRequestError or InvalidRequestError."""
    if isinstance(op, PutOp):
        records.check_address(op.namespace, op.key)
        if op.value is not None:
            records.check_ttl(op.ttl)
    elif isinstance(op, GetOp):
        records.check_labels(op.namespace)
    elif isinstance(op, SearchOp):
        records.check_labels(op.namespace_prefix)
    elif isinstance(op, ListNamespacesOp):
        for condition in op.match_conditions or ():
            records.check_labels(tuple(condition.path))


def _fields_of(row: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: row[name] for name in ("value", "key", "created_at", "updated_at")}
    return {**fields, "namespace": tuple(cast(list[str], row["namespace"]))}
