"""Secrets at rest. Each value is sealed with a data key of its own, which is wrapped by the master key.

A sealed value is bytes that name the master key they need:

    version 1 | master key id 8 | nonce 12, wrapped data key 32 + 16 | nonce 12, ciphertext + 16

Both layers are AES-256-GCM. The owner of the value is associated data of the inner layer: a value that was copied to
another row or column does not open. Rotating the master key re-wraps the outer layer only, for which no owner is
needed.
"""

from __future__ import annotations

import base64
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from moorage.kernel.errors import MoorageError, StartupError

KEY_BYTES = 32
_VERSION = b"\x01"
_ID_BYTES = 8
_NONCE_BYTES = 12
_TAG_BYTES = 16
_HEADER_BYTES = len(_VERSION) + _ID_BYTES
_DATA_AT = _HEADER_BYTES + _NONCE_BYTES + KEY_BYTES + _TAG_BYTES
_LEAST_BYTES = _DATA_AT + _NONCE_BYTES + _TAG_BYTES


class UnsealError(MoorageError):
    """The stored secret does not open: it was changed, has another owner, or its master key is not configured."""

    code = "unseal_failed"


class _MasterKey:
    """One key of 32 bytes, with a repr that does not show it."""

    __slots__ = ("_cipher", "_secret", "id")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(secret)
        self.id = sha256(b"moorage master key id" + secret).digest()[:_ID_BYTES]

    def wrap(self, data_key: bytes) -> bytes:
        header, nonce = _VERSION + self.id, os.urandom(_NONCE_BYTES)
        return header + nonce + self._cipher.encrypt(nonce, data_key, header)

    def unwrap(self, sealed: bytes) -> bytes:
        nonce = sealed[_HEADER_BYTES : _HEADER_BYTES + _NONCE_BYTES]
        return self._cipher.decrypt(nonce, sealed[_HEADER_BYTES + _NONCE_BYTES : _DATA_AT], sealed[:_HEADER_BYTES])

    def derive(self, purpose: str) -> bytes:
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=f"moorage {purpose}".encode()).derive(self._secret)


class MasterKeys:
    """The master keys. The first one seals, and any of them opens. `secrets` are 32 bytes each, newest first."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        keys = [_MasterKey(secret) for secret in secrets]
        self._newest = keys[0]
        self._by_id = {key.id: key for key in keys}

    def __repr__(self) -> str:
        return f"MasterKeys({', '.join(self.ids)})"

    @property
    def ids(self) -> list[str]:
        """Return public ids of the keys, newest first. They reveal nothing about the keys."""
        return [key_id.hex() for key_id in self._by_id]

    def seal(self, value: bytes, belongs_to: str) -> bytes:
        """Seal a value. `belongs_to` names the only place where it may be opened, as `SealedColumn.place` makes it."""
        data_key, nonce = AESGCM.generate_key(8 * KEY_BYTES), os.urandom(_NONCE_BYTES)
        ciphertext = AESGCM(data_key).encrypt(nonce, value, _VERSION + belongs_to.encode())
        return self._newest.wrap(data_key) + nonce + ciphertext

    def open(self, sealed: bytes, belongs_to: str) -> bytes:
        """Return the plain value. Raises UnsealError."""
        data_key = self._data_key(sealed)
        nonce = sealed[_DATA_AT : _DATA_AT + _NONCE_BYTES]
        try:
            return AESGCM(data_key).decrypt(nonce, sealed[_DATA_AT + _NONCE_BYTES :], _VERSION + belongs_to.encode())
        except InvalidTag:
            raise UnsealError("A stored secret does not open where it stands: it was changed or moved") from None

    @property
    def newest_prefix(self) -> bytes:
        """Return the prefix of every value that the newest key sealed. Values with it need none of the older keys."""
        return _VERSION + self._newest.id

    def rewrap(self, sealed: bytes) -> bytes:
        """Seal the value's data key with the newest key. Does not decrypt the value itself. Raises UnsealError."""
        return self._newest.wrap(self._data_key(sealed)) + sealed[_DATA_AT:]

    def derive(self, purpose: str) -> dict[str, bytes]:
        """Derive a key of 32 bytes for another purpose from each master key. Returns them by id, newest first."""
        return {key.id.hex(): key.derive(purpose) for key in self._by_id.values()}

    def _data_key(self, sealed: bytes) -> bytes:
        if len(sealed) < _LEAST_BYTES or sealed[:1] != _VERSION:
            raise UnsealError("A stored secret is damaged")
        key_id = sealed[1:_HEADER_BYTES]
        key = self._by_id.get(key_id)
        if key is None:
            raise UnsealError(
                f"A stored secret needs the master key {key_id.hex()}, which is not among those of MOORAGE_SECRET_KEY; "
                "add it after the newest one"
            )
        try:
            return key.unwrap(sealed)
        except InvalidTag:
            raise UnsealError("A stored secret is damaged") from None


@dataclass(frozen=True)
class SealedColumn:
    """A column of sealed values. The room that owns it declares it, so that a rotation of the master key finds it.

    The names become part of SQL, so they must be constants of the code.
    """

    table: str
    id_column: str
    column: str

    def place(self, row_id: object) -> str:
        """Return the `belongs_to` of a row for `seal` and `open`."""
        return f"{self.table}.{self.column}:{row_id}"


def new_master_key() -> str:
    """Return a new master key in the format of MOORAGE_SECRET_KEY and of the file in the home."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def read_master_keys(given: str | None, file: Path) -> MasterKeys:
    """Read the keys from MOORAGE_SECRET_KEY if it is set, else from the file. A missing file is created with one key.

    Raises StartupError when a key is not 32 bytes of base64, or others may read the file.
    """
    if given and given.strip():
        return MasterKeys(_parsed(given, "MOORAGE_SECRET_KEY"))
    if not file.exists():
        _write_once(file, f"{new_master_key()}\n")
    if file.stat().st_mode & 0o077:
        raise StartupError(f"The master key in {file.name} of the home may be read by others; chmod 600 it")
    return MasterKeys(_parsed(file.read_text(), f"{file.name} of the home"))


def _parsed(text: str, origin: str) -> list[bytes]:
    words = [word for word in re.split(r"[,\s]+", text) if word]
    if not words:
        raise StartupError(
            f"{origin} holds no key; expected 32 bytes in base64, as `moorage keys new-master` prints them"
        )
    return [_decoded(word, number, origin) for number, word in enumerate(words, 1)]


def _decoded(word: str, number: int, origin: str) -> bytes:
    # Accept both alphabets, with or without padding: keys come from many tools.
    plain = word.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        key = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise StartupError(
            f"Key {number} of {origin} is not 32 bytes in base64; `moorage keys new-master` prints one. "
            "Several keys are separated by commas, the newest first"
        )
    return key


def _write_once(file: Path, text: str) -> None:
    """Write the file durably and atomically. Of two concurrent processes one writes, and both read the same key."""
    descriptor, draft = tempfile.mkstemp(dir=file.parent)  # mode 0600
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
        os.link(draft, file)
    except FileExistsError:
        pass  # another process was first, and its key is used
    finally:
        os.close(descriptor)
        Path(draft).unlink()
    _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
