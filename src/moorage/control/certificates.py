"""Certificates of host names: makes the front door obtain each one, and records the certificate's state.

It connects to the front door under each name, as a visitor would; the first connection makes the front door obtain the
certificate.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from moorage.control.records.host_names import CertificateState, HostName
from moorage.control.store.host_names import HostNameStore
from moorage.embedded.front_tls import last_failure
from moorage.kernel.tls import shown_until

_AT_ONCE = 8
_ANSWER_S = 5.0
# The front door retries a failed certificate by itself, after a minute and then at growing intervals.
_LOOK_AGAIN_S = {"issued": 3600.0, "pending": 3.0, "failed": 20.0}
_NONE_FITS = "No certificate that was given covers the name, and no ACME server is set (MOORAGE_ACME_CA)"


@dataclass(frozen=True)
class CertificateRules:
    """Settings of the front door's certificates: its HTTPS address, its log, and whether it uses an ACME server."""

    host: str
    port: int
    log: Path
    asks: bool


class Certificates:
    """The certificates of host names. Each check is recorded before it is made, so several processes can share the
    names.
    """

    def __init__(self, rules: CertificateRules, store: HostNameStore) -> None:
        self._rules = rules
        self._store = store

    async def look(self) -> None:
        names = await self._store.take_due(_AT_ONCE, 2 * _ANSWER_S)
        await asyncio.gather(*map(self._look_at, names))

    async def _look_at(self, name: str) -> None:
        until = await shown_until(self._rules.host, self._rules.port, name, _ANSWER_S)
        state: CertificateState = "pending"
        message = None
        if until is not None and until > datetime.now(UTC):
            state = "issued"
        elif not self._rules.asks:
            state, message = "failed", _NONE_FITS
        elif message := await asyncio.to_thread(last_failure, self._rules.log, name):
            state = "failed"
        await self._store.note(
            HostName(name=name, certificate=state, message=message, expires_at=until), _LOOK_AGAIN_S[state]
        )
