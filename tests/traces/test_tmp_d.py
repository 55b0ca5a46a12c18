import time
from uuid import uuid4
import pytest
from moorage.traces.reading import Reading
from moorage.traces.records.runs import RunsFilter
from moorage.traces.store.feedback import FeedbackStore
from tests.traces.trace_data import insert_runs, random_runs
from datetime import datetime, UTC
pytest_plugins = "tests.traces.fixtures"
HEAVY = [
 lambda i: f'eq(input_value, "v{i}")',
 lambda i: f'gt(total_tokens, {i})',
 lambda i: f'like(input_key, "%{i}%")',
 lambda i: f'eq(input_key, "a.b.c{i}")',
 lambda i: f'and(eq(metadata_key,"k{i}"),eq(metadata_value,"v"))',
 lambda i: f'search("word{i} other thing")',
 lambda i: f'and(eq(feedback_key,"k{i}"),gt(feedback_score,{i}))',
 lambda i: f'eq(name,"n{i}")',
 lambda i: f'in(trace_id,["{uuid4()}"])',
 lambda i: f'eq(thread_id,"n{i}")',
]
@pytest.mark.parametrize("n", range(len(HEAVY)))
async def test_heavy(clickhouse, n):
    reading = Reading(clickhouse, FeedbackStore(clickhouse))
    t, s = uuid4(), uuid4()
    await insert_runs(clickhouse, random_runs(1, 5, t, s, datetime.now(UTC)))
    for op in ("or", "and"):
        for k in (126, 100, 80, 60, 40, 20):
            text = f"{op}({', '.join(HEAVY[n](i) for i in range(k))})"
            a = time.time()
            try:
                await reading.query(t, RunsFilter(session=[s], filter=text, trace_filter=text, tree_filter=text), fields=("name",))
                print(n, op, k, len(text), "ok", round(time.time()-a, 2)); break
            except Exception as e:
                print(n, op, k, len(text), type(e).__name__, str(e)[:150].replace("\n"," "), round(time.time()-a, 2))
