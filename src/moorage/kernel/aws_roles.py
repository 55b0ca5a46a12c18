"""Roles of AWS, and of stores that know them too: temporary credentials for a bucket that is somebody else's.

`AssumeRole` of the Security Token Service is the one request here. It is signed by whoever takes the role on, and names an
external id, by which the role's owner tells those apart who come with the same signature.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode, urlsplit

import httpx

from moorage.kernel.aws_signature import Credentials, signed_headers
from moorage.kernel.buckets.faults import BucketError, BucketFault, fault_of
from moorage.kernel.errors import BadRequestError

_TIMEOUT_S = 5
# What a role that was taken on by way of another allows at most.
_SESSION_S = 3600
# The bucket library asks for new ones five minutes before the end of those that it has.
_EARLY = timedelta(minutes=6)
_THROTTLED = re.compile("Throttl|RequestLimit|SlowDown|TooManyRequests")


@dataclass(frozen=True)
class AwsRole:
    """A role to assume: its name, the STS endpoint, the credentials that sign the request, and the proxy to use, if
    any.
    """

    arn: str
    external_id: str
    sts_url: str
    region: str
    signer: Credentials = field(repr=False)
    via: str | None = field(default=None, repr=False)


def sts_url_of(endpoint_url: str | None, region: str) -> str:
    """Stores that are not AWS answer for roles at the address where they answer for buckets."""
    parts = urlsplit(endpoint_url or "")
    if not parts.hostname or parts.hostname.endswith(".amazonaws.com"):
        return f"https://sts.{region}.amazonaws.com/"
    return f"{parts.scheme}://{parts.netloc}/"


class AssumedRole:
    """The credentials of a role, which are asked for anew shortly before they run out."""

    def __init__(self, role: AwsRole) -> None:
        self._role = role
        self._found: Credentials | None = None
        self._turn = asyncio.Lock()

    @property
    def is_current(self) -> bool:
        expires_at = self._found.expires_at if self._found else None
        return expires_at is not None and datetime.now(UTC) + _EARLY < expires_at

    async def lend(self) -> Credentials:
        """Raises BucketError, and BadRequestError for a role that cannot be one."""
        async with self._turn:
            if self._found is None or not self.is_current:
                self._found = await _assume(self._role)
            return self._found


async def _assume(role: AwsRole) -> Credentials:
    wanted = {
        "Action": "AssumeRole",
        "Version": "2011-06-15",
        "RoleArn": role.arn,
        "RoleSessionName": f"moorage-{role.external_id}",
        "ExternalId": role.external_id,
        "DurationSeconds": str(_SESSION_S),
    }
    body = urlencode(wanted).encode()
    headers = signed_headers(
        "POST",
        role.sts_url,
        {},
        body,
        credentials=role.signer,
        region=role.region,
        service="sts",
        now=datetime.now(UTC),
    )
    headers["content-type"] = "application/x-www-form-urlencoded"
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, proxy=role.via) as client:
            answer = await client.post(role.sts_url, content=body, headers=headers)
    except httpx.HTTPError as error:
        raise BucketError(BucketFault.UNREACHABLE, "no answer about the role") from error
    if not answer.is_success:
        raise _refusal(answer)
    return _credentials_in(answer.text)


def _refusal(answer: httpx.Response) -> BucketError | BadRequestError:
    """Return the error of a refused request. An error that is not a general one is about the role itself, and does not
    go away.
    """
    fault, shown = fault_of(f"non-2xx status code: {answer.status_code} {answer.text}")
    if fault.stays or answer.status_code >= 500 or answer.status_code in {408, 429} or _THROTTLED.search(shown):
        return BucketError(fault, shown)
    return BadRequestError(f"aws_role_arn: no such role can be taken on ({shown})")


def _credentials_in(text: str) -> Credentials:
    def value(name: str) -> str:
        found = re.search(f"<{name}>([^<]{{1,8192}})</{name}>", text)
        if found is None:
            raise BucketError(BucketFault.INVALID_ENDPOINT, "the answer names no credentials")
        return found[1]

    try:
        expires_at = datetime.fromisoformat(value("Expiration"))
    except ValueError:
        raise BucketError(BucketFault.INVALID_ENDPOINT, "the answer names no time") from None
    return Credentials(value("AccessKeyId"), value("SecretAccessKey"), value("SessionToken"), expires_at)
