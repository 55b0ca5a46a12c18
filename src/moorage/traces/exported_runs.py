"""Exported runs, the interface for bulk exports: pages of a selection as Parquet, and runs that changed since an
export.

The uncompressed size of a page is bounded, which bounds the memory that a part, a sort or a reader needs. The end of a
page is found first, from the sizes stored in the rows; the page is then one range of the key.
"""

from __future__ import annotations

from collections.abc import Sequence

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.filter_language.text import parse
from moorage.traces.store.exported_runs import (
    EXPORT_SCOPE,
    ROW_BYTES,
    ExportedRunStore,
    ExportPage,
    ExportSelection,
)
from moorage.traces.store.filters import compile_filter
from moorage.traces.store.selections import Condition as RunCondition
from moorage.traces.store.selections import Position

__all__ = ["ExportPage", "ExportSelection", "ExportedRuns", "RunCondition", "export_condition"]

# Size of most rows with their long texts, to guess the number of rows of a page. No row is smaller than ROW_BYTES.
_USUAL_ROW_BYTES = 2048


def export_condition(text: str) -> RunCondition:
    """Compile a filter for an export. Raises FilterSyntaxError or InvalidRequestError (422)."""
    return compile_filter(parse(text), EXPORT_SCOPE)


class ExportedRuns:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._store = ExportedRunStore(clickhouse)
        self.write_parquet = self._store.write_parquet
        self.count = self._store.count
        self.changed = self._store.changed

    async def next_page(
        self, selection: ExportSelection, after: Position | None, fields: Sequence[str], bytes_max: int
    ) -> ExportPage | None:
        """Find the page after this position; None at the end. It exceeds `bytes_max` by at most one run."""
        for row_bytes in (_USUAL_ROW_BYTES, ROW_BYTES):
            rows_max = bytes_max // row_bytes + 1
            page = await self._store.page_after(selection, after, fields, bytes_max, rows_max)
            if page is None or page.rows < rows_max:
                break
        return page
