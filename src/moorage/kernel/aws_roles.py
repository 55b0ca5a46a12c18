"""Roles of AWS, and of stores that also know roles: temporary credentials for a bucket of another owner.

`AssumeRole` of the Security Token Service is the only request here. It is signed by the caller and names an external
id. By that id the role's owner tells apart the parties that sign with the same credentials.
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
# The longest session that AWS allows for a role assumed with the credentials of another role.
_SESSION_S = 3600
# The bucket library renews credentials five minutes before they expire.
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
    """Return the STS endpoint. Stores other than AWS serve it at the address of their buckets."""
    parts = urlsplit(endpoint_url or "")
    if not parts.hostname or parts.hostname.endswith(".amazonaws.com"):
        return f"https://sts.{region}.amazonaws.com/"
    return f"{parts.scheme}://{parts.netloc}/"


class AssumedRole:
    """Temporary credentials of a role, renewed shortly before they expire."""

    def __init__(self, role: AwsRole) -> None:
        self._role = role
        self._found: Credentials | None = None
        self._turn = asyncio.Lock()

    @property
    def is_current(self) -> bool:
        expires_at = self._found.expires_at if self._found else None
        return expires_at is not None and datetime.now(UTC) + _EARLY < expires_at

    async def lend(self) -> Credentials:
        """Return current credentials. Raises BucketError, and BadRequestError for an invalid role."""
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
    """Return the error for a refused request. Errors other than the general ones concern the role itself and are
    permanent.
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
