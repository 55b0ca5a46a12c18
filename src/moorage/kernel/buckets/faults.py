"""Faults of buckets, recognised by the library's error texts and the stores' error codes."""

from __future__ import annotations

import re
from enum import StrEnum

from moorage.kernel import relay
from moorage.kernel.errors import MoorageError


class BucketFault(StrEnum):
    """A kind of fault. A retry helps only against the last two; the others last until somebody changes something."""

    ACCESS_DENIED = "AccessDenied"
    NO_SUCH_BUCKET = "NoSuchBucket"
    INVALID_KEY_ID = "InvalidKeyId"
    INVALID_ENDPOINT = "InvalidEndpoint"
    INVALID_BUCKET_NAME = "InvalidBucketName"
    UNREACHABLE = "Unreachable"
    TRANSIENT = "Transient"

    @property
    def stays(self) -> bool:
        return self not in {BucketFault.UNREACHABLE, BucketFault.TRANSIENT}


class BucketError(MoorageError):
    """A failed operation of a bucket. `fault` is its kind; the text holds at most the store's own error code."""

    status = 503
    code = "bucket_failed"

    def __init__(self, fault: BucketFault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_FAULTS = {
    "AccessDenied": BucketFault.ACCESS_DENIED,
    "AllAccessDisabled": BucketFault.ACCESS_DENIED,
    "AccountProblem": BucketFault.ACCESS_DENIED,
    "ExpiredToken": BucketFault.ACCESS_DENIED,
    "InvalidToken": BucketFault.ACCESS_DENIED,
    "InvalidSecurity": BucketFault.ACCESS_DENIED,
    "SignatureDoesNotMatch": BucketFault.ACCESS_DENIED,
    "AuthorizationFailure": BucketFault.ACCESS_DENIED,
    "AuthenticationFailed": BucketFault.ACCESS_DENIED,
    "ExpiredTokenException": BucketFault.ACCESS_DENIED,
    "NoSuchBucket": BucketFault.NO_SUCH_BUCKET,
    "ContainerNotFound": BucketFault.NO_SUCH_BUCKET,
    "InvalidAccessKeyId": BucketFault.INVALID_KEY_ID,
    "InvalidClientTokenId": BucketFault.INVALID_KEY_ID,
    "InvalidBucketName": BucketFault.INVALID_BUCKET_NAME,
    "InvalidResourceName": BucketFault.INVALID_BUCKET_NAME,
    "PermanentRedirect": BucketFault.INVALID_ENDPOINT,
    "AuthorizationHeaderMalformed": BucketFault.INVALID_ENDPOINT,
    "IllegalLocationConstraintException": BucketFault.INVALID_ENDPOINT,
    "MethodNotAllowed": BucketFault.INVALID_ENDPOINT,
    relay.MISDIRECTED: BucketFault.INVALID_ENDPOINT,
    relay.UNREACHABLE: BucketFault.UNREACHABLE,
    # A clock difference is temporary.
    "RequestTimeTooSkewed": BucketFault.TRANSIENT,
}


def fault_of(text: str) -> tuple[BucketFault, str]:
    """Return the fault for an error text of the library, and the part that may be shown: never a response body."""
    status, code = _STATUS.search(text), _CODE.search(text)
    shown = " ".join(found[1] for found in (status, code) if found)
    if code and code[1] in _FAULTS:
        return _FAULTS[code[1]], shown
    if status:
        number = int(status[1])
        if number in {401, 403}:
            return BucketFault.ACCESS_DENIED, shown
        # The response has no S3 error code, so another kind of server is at this address.
        if not code and 300 <= number < 500 and number not in {408, 429}:
            return BucketFault.INVALID_ENDPOINT, shown
        return BucketFault.TRANSIENT, shown
    if "redirect without LOCATION" in text:  # the relay hides the target from the library
        return BucketFault.INVALID_ENDPOINT, "a redirect, which is not followed"
    if "kind: Connect" in text:
        return BucketFault.UNREACHABLE, "no connection"
    if "kind: Unknown" in text or ("kind: Request" in text and "hyper::Error(Parse" in text):
        return BucketFault.INVALID_ENDPOINT, "the answer is not HTTP"
    return BucketFault.TRANSIENT, "no complete answer"


def is_known(text: str) -> bool:
    """Return True if the text contains an error code that is known."""
    code = _CODE.search(text)
    return code is not None and code[1] in _FAULTS
