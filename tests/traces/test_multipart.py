"""Multipart bodies: cut while they arrive, in any order, with any lengths and compression."""

import gzip
import io
from email.message import Message

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from requests_toolbelt import MultipartEncoder

from moorage.kernel.errors import BodyTooLargeError, InvalidRequestError
from moorage.traces.sent_body import HEADERS_BYTES_MAX, MultipartParser, Part, read_boundary, unpack

BOUNDARY = b"a" * 32
LIMITS = {"wire_bytes_max": 1_000_000, "unpacked_bytes_max": 2_000_000}


def part(name, data, *lines):
    head = "".join(f"{line}\r\n" for line in (f'Content-Disposition: form-data; name="{name}"', *lines))
    return b"--" + BOUNDARY + b"\r\n" + head.encode() + b"\r\n" + data + b"\r\n"


def sized(name, data):
    return part(name, data, "Content-Type: application/json", f"Content-Length: {len(data)}")


def body(*parts):
    return b"".join(parts) + b"--" + BOUNDARY + b"--\r\n"


def cut(data, *steps):
    parser, parts, at = MultipartParser(BOUNDARY), [], 0
    for step in [*steps, len(data)]:
        parts += parser.feed(data[at : at + step])
        at += step
    return parts + parser.close()


@given(
    st.lists(st.tuples(st.text("ab.-", min_size=1), st.binary(max_size=300), st.sampled_from("hpn")), max_size=6),
    st.lists(st.integers(1, 200), max_size=40),
)
@settings(max_examples=150, deadline=None)
def test_parts_are_the_same_however_the_body_is_cut(given_parts, steps):
    forms = {
        "h": sized,
        "p": lambda name, data: part(name, data, f"Content-Type: text/plain; length={len(data)}"),
        "n": part,
    }
    # Without a length, data ends at a boundary inside it, so the client has to choose another boundary.
    whole = body(*(forms[form](name, data) for name, data, form in given_parts))
    assert [(found.name, found.data) for found in cut(whole, *steps)] == [(name, data) for name, data, _ in given_parts]


def test_a_sized_part_may_hold_the_boundary():
    data = b"\r\n--" + BOUNDARY + b"--\r\n"
    assert cut(body(sized("x", data), sized("y", b"")), 7) == [
        Part("x", "application/json", data),
        Part("y", "application/json", b""),
    ]


def test_what_the_clients_library_encodes_is_read():
    fields = [
        ("post.1", (None, b'{"a":1}', "application/json", {"Content-Length": "7"})),
        ("attachment.1.file", (None, io.BytesIO(b"\x00\xff\r\n"), "image/png; length=4", {})),
    ]
    encoder = MultipartEncoder(fields, boundary=BOUNDARY.decode())
    parts = cut(encoder.to_string(), 10, 20, 30)
    assert parts == [
        Part("post.1", "application/json", b'{"a":1}'),
        Part("attachment.1.file", "image/png", b"\x00\xff\r\n"),
    ]
    assert read_boundary(encoder.content_type) == BOUNDARY


def test_header_names_and_length_parameters_may_be_written_in_any_case():
    lines = b'CONTENT-TYPE: application/json; Length=2\r\ncontent-disposition: form-data; filename="f"; name="x"\r\n'
    assert cut(b"--" + BOUNDARY + b"\r\n" + lines + b"\r\n{}\r\n--" + BOUNDARY + b"--") == [
        Part("x", "application/json", b"{}")
    ]


def test_text_behind_the_parts_means_nothing():
    assert [found.name for found in cut(body(sized("x", b"1")) + b"epilogue", 3)] == ["x"]
    assert cut(body()) == []


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{}",
        b"x" * (HEADERS_BYTES_MAX * 2),
        body(sized("x", b"1"))[:-40],
        body(sized("x", b"1"))[:60],
        body(sized("x", b"1"))[20:],
        b"preamble\r\n" + body(sized("x", b"1")),
        b"--" + BOUNDARY + b"\r\n" + b"a: b\r\n" * HEADERS_BYTES_MAX,
        body(part("x", b"12345", "Content-Length: 3")),
        body(part("x", b"12345", "Content-Length: 7")),
        body(part("x", b"12345", "Content-Length: 99")),
        body(part("x", b"12345", "Content-Length: 9999999999999")),
        body(part("x", b"12345", "Content-Length: -1")),
        body(part("", b"1")),
        body(b"--" + BOUNDARY + b"\r\nContent-Type: a/b\r\n\r\n1\r\n"),
        body(part("x", b"1", "Content-Encoding: gzip")),
        sized("x", b"1") + b"no boundary" + body(),
    ],
)
def test_a_body_that_is_no_multipart_body_is_refused(broken):
    with pytest.raises(InvalidRequestError):
        cut(broken, 50)


def test_large_headers_are_refused_also_when_they_come_at_once():
    with pytest.raises(InvalidRequestError, match="too large"):
        MultipartParser(BOUNDARY).feed(body(part("x", b"1", "X: " + "x" * HEADERS_BYTES_MAX)))


@pytest.mark.parametrize("content_type", ["", "application/json", "multipart/form-data", "text/boundary=x"])
def test_a_content_type_without_a_boundary_is_refused(content_type):
    with pytest.raises(InvalidRequestError):
        read_boundary(content_type)


def test_a_boundary_may_be_quoted():
    message = Message()
    message.add_header("Content-Type", "multipart/form-data", boundary="a b")
    assert read_boundary(message["Content-Type"]) == b"a b"


def test_a_large_part_is_not_copied_again_with_each_chunk():
    data = b"x" * 3_000_000
    parts = cut(body(part("x", data)), *[997] * 2000)
    assert parts[0].data == data


# --- compression ---


def frame(data, **options):
    compressor = zstandard.ZstdCompressor(**options)
    packed = io.BytesIO()
    with compressor.stream_writer(packed, closefd=False) as writer:
        writer.write(data)
    return packed.getvalue()


async def unpacked(data, encoding, step=10, **limits):
    async def chunks():
        for at in range(0, len(data), step):
            yield data[at : at + step]

    return b"".join([piece async for piece in unpack(chunks(), encoding, **{**LIMITS, **limits})])


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("", bytes),
        ("identity", bytes),
        ("gzip", gzip.compress),
        ("GZIP", lambda data: gzip.compress(data[:5]) + gzip.compress(data[5:])),
        ("zstd", frame),
        ("zstd", lambda data: frame(data[:5]) + frame(data[5:])),
        ("zstd", zstandard.compress),
    ],
)
async def test_a_body_is_unpacked_while_it_arrives(encoding, pack):
    data = bytes(range(256)) * 50
    for step in (1, 1000, 100_000):
        assert await unpacked(pack(data), encoding, step) == data


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", frame)])
async def test_a_body_that_unpacks_to_far_more_than_it_may_is_refused_early(encoding, pack):
    bomb = pack(bytes(50_000_000))
    assert len(bomb) < 60_000
    with pytest.raises(BodyTooLargeError, match="2000000"):
        await unpacked(bomb, encoding, len(bomb))


async def test_a_frame_that_needs_much_memory_is_refused():
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    with pytest.raises(InvalidRequestError):
        await unpacked(frame(b"x" * 1000, compression_params=parameters), "zstd")


async def test_more_than_the_limit_on_the_wire_is_refused():
    with pytest.raises(BodyTooLargeError, match="100"):
        await unpacked(b"x" * 200, "", wire_bytes_max=100)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", b"not gzip"),
        ("zstd", b"not zstd"),
        ("gzip", gzip.compress(b"x" * 999, mtime=0)[:-5]),
        ("zstd", frame(b"x" * 999)[:-3]),
        ("br", b""),
        ("gzip, zstd", b""),
    ],
)
async def test_a_body_that_does_not_unpack_is_refused(encoding, data):
    with pytest.raises(InvalidRequestError):
        await unpacked(data or b"x", encoding)
