"""Messages between the processes of one installation: by PostgreSQL's NOTIFY, or by Redis if one is configured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import structlog

from moorage.kernel.errors import UnavailableError
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger(__name__)

_RETRY_S = 1.0
# NOTIFY takes 7999 bytes. A longer message becomes a row, and the notification carries its id.
_NOTIFY_BYTES_MAX = 7900
_ROW_MARK = "row:"
_NOTIFY = "SELECT pg_notify('moorage', %s)"
# A row is read within moments or never, so each new row deletes old ones.
_NOTIFY_ROW = """
WITH old AS (
    DELETE FROM broadcast_messages WHERE sent_at < now() - interval '1 minute'
), sent AS (
    INSERT INTO broadcast_messages (message_id, body) VALUES (%(id)s, %(body)s)
)
SELECT pg_notify('moorage', %(mark)s)
"""
_READ_ROW = "SELECT body FROM broadcast_messages WHERE message_id = %s"


class PostgresBroadcast:
    """Broadcast by NOTIFY on one channel. Needs the table `broadcast_messages`."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def send(self, message: bytes) -> None:
        if len(message) <= _NOTIFY_BYTES_MAX:
            await self._postgres.execute(_NOTIFY, (message.decode(),))
            return
        message_id = uuid7()
        values = {"id": message_id, "body": message, "mark": f"{_ROW_MARK}{message_id}"}
        await self._postgres.execute(_NOTIFY_ROW, values)

    async def receive(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._postgres.conninfo, autocommit=True, application_name="moorage bus"
                ) as connection:
                    await connection.execute("LISTEN moorage")
                    yield b""
                    async for notification in connection.notifies():
                        if (body := await self._body_of(notification.payload)) is not None:
                            yield body
            except (psycopg.OperationalError, UnavailableError) as error:
                log.warning("cut off from other processes", error=str(error))
                await asyncio.sleep(_RETRY_S)

    async def _body_of(self, payload: str) -> bytes | None:
        if not payload.startswith(_ROW_MARK):
            return payload.encode()
        row = await self._postgres.fetch_one(_READ_ROW, (UUID(payload.removeprefix(_ROW_MARK)),))
        return row["body"] if row else None


class RedisBroadcast:
    """Broadcast by PUBLISH on one channel."""

    def __init__(self, uri: str, prefix: str) -> None:
        from redis.asyncio import Redis  # only where a REDIS_URI is set

        self._redis: Redis = Redis.from_url(uri, socket_timeout=5, health_check_interval=30)
        self._channel = f"{prefix}moorage"

    async def send(self, message: bytes) -> None:
        from redis.exceptions import RedisError  # only where a REDIS_URI is set

        try:
            await self._redis.publish(self._channel, message)
        except RedisError as error:
            raise UnavailableError("Redis is not available") from error

    async def receive(self) -> AsyncIterator[bytes]:
        from redis.exceptions import RedisError  # only where a REDIS_URI is set

        while True:
            try:
                async with self._redis.pubsub() as subscription:
                    await subscription.subscribe(self._channel)
                    while True:
                        message: dict[str, Any] | None = await subscription.get_message(timeout=30)
                        if message is not None:  # after a lost connection the client subscribes again by itself
                            yield b"" if message["type"] == "subscribe" else message["data"]
            except RedisError as error:
                log.warning("cut off from other processes", error=str(error))
                await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        await self._redis.aclose()
