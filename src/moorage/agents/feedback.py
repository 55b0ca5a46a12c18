"""Feedback links: signed URLs at which the reader of a stream may judge the run, made by the trace store of this
process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cached_property
from uuid import UUID

import structlog
from langsmith import Client
from urllib3.util import Retry

log = structlog.get_logger(__name__)

_LINKS_S = 5.0


class FeedbackLinks:
    """Links from the LangSmith-compatible store that `environment` names; none if it names no store."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._url = environment.get("LANGSMITH_ENDPOINT")
        self._key = environment.get("LANGSMITH_API_KEY")

    async def of(self, run_id: UUID, keys: list[str]) -> dict[str, str]:
        """Return a link for each key; none when the store is away, since that must not fail a successful run."""
        if not (self._url and self._key and keys):
            return {}
        try:
            async with asyncio.timeout(_LINKS_S):
                return await asyncio.to_thread(self._signed, run_id, keys)
        except Exception as error:
            # The error's text is left out: it may quote the request.
            log.warning("no feedback links", run_id=str(run_id), error=type(error).__name__)
            return {}

    def _signed(self, run_id: UUID, keys: list[str]) -> dict[str, str]:
        tokens = self._client.create_presigned_feedback_tokens(run_id, keys)
        return {key: token.url for key, token in zip(keys, tokens, strict=True)}

    @cached_property
    def _client(self) -> Client:
        """Return a client that fails at once instead of retrying, because the stream waits for it."""
        return Client(
            self._url,
            api_key=self._key,
            timeout_ms=(2000, 4000),
            retry_config=Retry(total=0),
            auto_batch_tracing=False,
        )
