"""Encryption and decryption of the secrets of deployments."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from moorage.control.records.secrets import SEALED_SECRETS, SealedSecrets, secrets_hash
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.encoding import decode, encode


class SecretBox:
    def __init__(self, keys: MasterKeys) -> None:
        self._keys = keys
        self._hash_key = next(iter(keys.derive("secrets hash").values()))

    def seal(self, deployment_id: UUID, secrets: Mapping[str, str]) -> SealedSecrets:
        sealed = self._keys.seal(encode(dict(secrets)), SEALED_SECRETS.place(deployment_id))
        return SealedSecrets(sealed, tuple(sorted(secrets)), secrets_hash(secrets, self._hash_key))

    def open(self, deployment_id: UUID, secrets: SealedSecrets) -> dict[str, str]:
        """Decrypt the secrets. Raises UnsealError."""
        found: dict[str, str] = decode(self._keys.open(secrets.sealed, SEALED_SECRETS.place(deployment_id)))
        return found
