"""ETags of objects that stores compute from MD5."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from typing_extensions import Buffer

CHUNK_BYTES = 16 * 2**20  # size of an upload's parts: the ETag is computed from their digests
_MD5_ETAG = re.compile(r'"?([0-9a-f]{32}(?:-\d+)?)"?')


def md5_etag(file: Path) -> str:
    """Return the ETag that stores with MD5 ETags give this file after `put_file`. Reads the file; run it in a thread."""
    digests = []
    with file.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            digests.append(md5_hex(chunk))
    if len(digests) <= 1:
        return digests[0] if digests else md5_hex(b"")
    return f"{md5_hex(bytes.fromhex(''.join(digests)))}-{len(digests)}"


def md5_hex(data: Buffer) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def is_etag(etag: str | None, expected: str) -> bool | None:
    """Compare an ETag with the expected one. Returns None for an ETag of another form, which proves nothing."""
    found = _MD5_ETAG.fullmatch(etag or "")
    return None if found is None else found[1] == expected
