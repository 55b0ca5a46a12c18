"""Parsing of one sent run: fields that are accepted, repaired or refused."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import UUID, uuid4

import orjson
import pytest

from moorage.traces.parse_run import RefusedOrderError, RefusedRunError, parse_run
from moorage.traces.records.run_rows import SentRun
from moorage.traces.sent_body import split_batch, split_single

ID, PARENT, TRACE = (f"{n:08x}-1111-4111-8111-{n:012x}" for n in (3, 2, 1))
STAMP = "20260615T120000123456Z"
START_US = 1_781_524_800_123_456
ORDER = f"{STAMP}{ID}"
CHILD_ORDER = f"{STAMP}{TRACE}.{STAMP}{PARENT}.{STAMP}{ID}"


def sent(run=None, *, is_patch=False, **payloads):
    made = SentRun(ID, is_patch=is_patch)
    made.main = orjson.dumps({"id": ID, "dotted_order": ORDER, "run_type": "chain", "name": "n", **(run or {})})
    made.payloads = {name: data if isinstance(data, bytes) else orjson.dumps(data) for name, data in payloads.items()}
    return made


def read(run=None, **options):
    write = parse_run(sent(run, **options))
    return write, SimpleNamespace(**write.values)


def test_a_root_is_read():
    write, values = read(
        {"trace_id": ID, "end_time": "2026-06-15T12:00:01+00:00", "tags": ["a", "b"], "session_name": "p"},
        inputs=b'{"b": 1,  "a": 2}',
        extra={"metadata": {"thread_id": "t", "user": "u"}, "runtime": {"sdk": "x"}},
    )
    assert (write.id, write.trace_id, write.parent_run_id, write.start_us) == (ID, ID, None, START_US)
    assert write.project == "p"
    assert values.inputs == b'{"b": 1,  "a": 2}'  # unchanged
    assert values.end_time == 1_781_524_801_000_000
    assert values.extra_without_metadata == b'{"runtime":{"sdk":"x"}}'
    assert values.metadata_json == b'{"thread_id":"t","user":"u"}'
    assert (values.thread_id, values.tags) == ("t", b'["a","b"]')
    assert values.outputs is values.error is values.events is None


def test_a_child_is_read_from_its_order():
    write, _ = read({"dotted_order": CHILD_ORDER, "parent_run_id": PARENT})
    assert (write.trace_id, write.parent_run_id) == (TRACE, PARENT)


def test_payloads_may_stand_in_the_run_itself():
    _, values = read({"inputs": {"a": 1}, "error": "broke", "extra": {"metadata": {}}})
    assert (values.inputs, values.error, values.metadata_json) == (b'{"a":1}', "broke", b"{}")


@pytest.mark.parametrize(
    ("metadata", "thread_id"),
    [
        ({"session_id": "s", "conversation_id": "c", "thread_id": "t"}, "s"),
        ({"conversation_id": "c", "thread_id": "t"}, "c"),
        ({"session_id": "", "thread_id": 7}, "7"),
        ({"other": "x"}, None),
    ],
)
def test_the_thread_is_named_by_the_metadata(metadata, thread_id):
    assert read(extra={"metadata": metadata})[1].thread_id == thread_id


def test_the_first_token_is_the_first_event_of_that_name():
    events = [
        {"name": "start", "time": "2026-06-15T12:00:00"},
        {"name": "new_token", "time": "2026-06-15T12:00:02"},
        {"name": "new_token", "time": "2026-06-15T12:00:03"},
    ]
    assert read(events=events)[1].first_token_time == 1_781_524_802_000_000
    assert read(events=[{"name": "new_token", "time": "soon"}, None, "new_token"])[1].first_token_time is None


@pytest.mark.parametrize(
    ("value", "microseconds"),
    [
        ("2026-06-15T12:00:00.123456+00:00", START_US),
        ("2026-06-15T12:00:00.123456", START_US),
        ("2026-06-15T12:00:00.123456Z", START_US),
        ("2026-06-15T12:00:00.123456789Z", START_US),
        ("2026-06-15 14:00:00.123456+02:00", START_US),
        (1_781_524_800_123, START_US - 456),
        (1_781_524_800_123.456, START_US),
    ],
)
def test_times_come_in_several_forms(value, microseconds):
    assert read({"end_time": value})[1].end_time == microseconds


@pytest.mark.parametrize(
    "value",
    [
        "0001-01-01T00:00:00",
        "9999-12-31T23:59:59+00:00",
        "0001-01-01T00:00:00+14:00",
        "1969-12-31T23:59:59Z",
        -1,
        1e300,
        "soon",
        True,
        {},
    ],
)
def test_times_that_nothing_can_hold_are_refused(value):
    with pytest.raises(RefusedRunError, match="end_time"):
        read({"end_time": value})


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        ({"dotted_order": "x"}, "expected segments"),
        ({"dotted_order": 5}, "expected segments"),
        ({"dotted_order": ORDER[:-1]}, "expected segments"),
        ({"dotted_order": ORDER + "."}, "expected segments"),
        ({"dotted_order": ORDER.replace("Z", "z")}, "expected segments"),
        ({"dotted_order": f"{STAMP}{ID}." * 2000 + ORDER}, "expected segments"),
        ({"dotted_order": "20261315T120000123456Z" + ID}, "not a time"),
        ({"dotted_order": "99990615T120000123456Z" + ID}, "between the years"),
        ({"dotted_order": "00010615T120000123456Z" + ID}, "between the years"),
        ({"dotted_order": STAMP + TRACE}, "must be of this run"),
        ({"trace_id": TRACE}, "must be of the trace"),
        ({"parent_run_id": PARENT}, "must contain at least two parts for child runs"),
        ({"dotted_order": CHILD_ORDER}, "must contain a single part for root runs"),
        ({"dotted_order": CHILD_ORDER, "parent_run_id": TRACE}, "must be of the parent"),
    ],
)
def test_an_order_that_contradicts_its_ids_is_refused(run, complaint):
    with pytest.raises(RefusedOrderError, match=complaint) as refused:
        read(run)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        ({"run_type": "model"}, "run_type must be one of chain"),
        ({"run_type": None}, "run_type"),
        ({"run_type": ["llm"]}, "run_type"),
        ({"id": "1"}, "id must be a UUID"),
        ({"trace_id": 1}, "trace_id must be a UUID"),
        ({"session_id": "mine"}, "session_id must be a UUID"),
        ({"reference_example_id": "x"}, "reference_example_id"),
        ({"name": 5}, "name must be text"),
        ({"session_name": ["x"]}, "session_name"),
        ({"session_name": "x" * 601}, "session_name"),
        ({"tags": "x"}, "tags"),
        ({"inputs": [1]}, "inputs must be an object"),
        ({"outputs": "x"}, "outputs must be an object"),
        ({"events": {}}, "events must be a list"),
        ({"extra": []}, "extra must be an object"),
        ({"extra": {"metadata": "x"}}, "metadata"),
    ],
)
def test_a_run_of_the_wrong_shape_is_refused(run, complaint):
    with pytest.raises(RefusedRunError, match=complaint) as refused:
        read(run)
    assert refused.value.status == 422


@pytest.mark.parametrize("main", [None, b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000])
def test_a_run_that_is_no_object_is_refused(main):
    broken = sent()
    broken.main = main
    with pytest.raises(RefusedRunError):
        parse_run(broken)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": NaN, "b": [Infinity, -Infinity], "c": 1e999}', {"a": None, "b": [None, None], "c": None}),
        (b'{"a": "\xff\xfe"}', {"a": "\ufffd\ufffd"}),
        (b'{"a": "\\ud800x", "b": "\\ud83d\\ude00"}', {"a": "\ufffdx", "b": "\U0001f600"}),
        (b'{"a": "\x00\n"}', {"a": "\0\n"}),
        (b'{"a": "\\u0000"}', {"a": "\0"}),
    ],
)
def test_what_json_does_not_have_is_repaired(data, expected):
    _, values = read(inputs=data)
    assert orjson.loads(values.inputs) == expected


@pytest.mark.parametrize("name", ["id", "name", "session_name", "error", "tags", "extra", "inputs", "dotted_order"])
def test_half_a_surrogate_pair_stands_nowhere_in_what_is_written(name):
    value = {"tags": ["\ud800"], "extra": {"metadata": {"\udfff": "\ud800"}}, "inputs": {"a": "\ud800"}}.get(
        name, "\ud800"
    )
    body = json.dumps({"id": ID, "dotted_order": ORDER, "run_type": "chain", name: value}).encode()
    [single], [of_batch] = split_single(body), split_batch(b'{"post": [' + body + b"]}")
    part = SentRun(ID, is_patch=False)
    part.main = body
    for made in (single, of_batch, part):
        try:
            write = parse_run(made)
        except RefusedRunError as error:
            str(error).encode()
        else:
            texts = [write.project, *write.values.values()]
            assert [text.encode() for text in texts if isinstance(text, str)]


def test_a_payload_that_cannot_be_repaired_is_refused():
    for broken in (b"{", b"", b"{'a': 1}", b'{"a":' * 100_000):
        with pytest.raises(RefusedRunError, match="JSON"):
            read(inputs=broken)


def test_huge_numbers_stay_exact():
    number = 123456789012345678901234567890
    data = b'{"n": %d}' % number
    assert read(inputs=data)[1].inputs == data
    assert json.loads(read(extra=b'{"metadata": %s, "n": %d}' % (data, number))[1].metadata_json) == {"n": number}
    batch = b'{"post": [{"id": "%s", "inputs": %s, "run_type": "llm"}]}' % (ID.encode(), data)
    assert json.loads(split_batch(batch)[0].payloads["inputs"]) == {"n": number}


def test_an_empty_error_is_none_and_another_kind_is_told_as_json():
    assert read(error="")[1].error is None
    assert read(error={"code": 1})[1].error == '{"code":1}'


def test_a_patch_may_say_as_little_as_it_likes():
    patch = SentRun(ID, is_patch=True)
    write = parse_run(patch)
    assert (write.id, write.start_us, write.trace_id, write.project) == (ID, None, None, None)
    assert set(write.values.values()) == {None}


def test_a_patch_of_a_child_need_not_name_its_parent():
    write, _ = read({"dotted_order": CHILD_ORDER}, is_patch=True)
    assert (write.trace_id, write.parent_run_id, write.start_us) == (TRACE, PARENT, START_US)


def test_a_root_without_an_order_makes_its_own():
    write, _ = read({"dotted_order": None, "start_time": "2026-06-15T12:00:00.123456"})
    assert (write.trace_id, write.dotted_order, write.start_us) == (ID, ORDER, START_US)
    before = datetime.now(UTC).timestamp() * 1e6
    assert before - 1 <= read({"dotted_order": None})[0].start_us <= before + 5e6
    with pytest.raises(RefusedRunError, match="parent_run_id"):
        read({"dotted_order": None, "trace_id": TRACE})


def test_an_address_names_a_project_of_its_agent():
    assert read({"address": "lrn:agents/support/environments/prod"})[0].project == "support/prod"
    assert read({"address": "anything"})[0].project == "default"


def test_usage_of_a_patch_that_does_not_say_what_it_is_of_is_unclear():
    outputs = {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    run = {"run_type": None}
    write, _ = read(run, is_patch=True, outputs=outputs)
    assert write.unclear
    write.clarify({"run_type": "chain"})
    assert write.usage is None
    write, _ = read(run, is_patch=True, outputs=outputs)
    write.clarify({"run_type": "llm", "metadata_json": b'{"ls_model_name":"m"}'})
    assert write.usage.total_tokens == 3
    assert write.model.names == (("ls_model_name", "m"),)


def test_a_batch_and_a_single_run_are_split():
    other = str(uuid4())
    batch = orjson.dumps({"post": [{"id": ID, "inputs": {"a": 1}, "error": None}], "patch": [{"id": other}]})
    post, patch = split_batch(batch)
    assert (post.id, post.is_patch, post.payloads["inputs"]) == (ID, False, b'{"a":1}')
    assert (patch.id, patch.is_patch) == (other, True)
    assert [run.id for run in split_single(b'{"id": "x"}', ID)] == [ID]
    assert split_batch(b"{}") == []


def test_a_new_run_without_an_id_gets_one():
    [first], [second] = (split_single(b'{"name": "x", "run_type": "chain", "id": null}') for _ in range(2))
    assert UUID(first.id).version == UUID(second.id).version == 7
    assert first.id != second.id
    order = f"20260615T120000000000Z{ID}"
    assert split_single(orjson.dumps({"dotted_order": order}))[0].id == ID
    assert split_single(orjson.dumps({"trace_id": ID}))[0].id == ID
    child = {"trace_id": ID, "parent_run_id": ID}
    assert split_single(orjson.dumps(child))[0].id != ID


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b'{"post": {}}', b'{"patch": [1]}', b"\xff", b"{"])
def test_a_batch_of_another_shape_is_refused(body):
    with pytest.raises(RefusedRunError):
        split_batch(body)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'"x"'])
def test_a_single_run_of_another_shape_is_refused(body):
    with pytest.raises(RefusedRunError):
        split_single(body)
