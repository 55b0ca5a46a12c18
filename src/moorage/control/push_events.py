"""Webhooks of forges: checks their signatures, and reads which repository was pushed to.

Sources: docs.github.com/webhooks (X-Hub-Signature-256: `sha256=` and the HMAC of the body in hex),
docs.gitlab.com/user/project/ integrations/webhooks (X-Gitlab-Token: the secret itself), docs.gitea.com/usage/webhooks
(X-Gitea-Signature: the HMAC in hex).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from moorage.control.records.integrations import ForgeKind
from moorage.kernel.encoding import decode
from moorage.kernel.errors import BadRequestError

_EVENTS: dict[ForgeKind, tuple[str, str]] = {
    "github": ("x-github-event", "push"),
    "gitlab": ("x-gitlab-event", "Push Hook"),
    "gitea": ("x-gitea-event", "push"),
}


def is_signed(kind: ForgeKind, secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Return True if the sender of the webhook knows the secret. Compares in constant time."""
    if kind == "gitlab":
        given, expected = headers.get("x-gitlab-token", ""), secret
    else:
        digest = hmac.digest(secret.encode(), body, "sha256").hex()
        name, expected = (
            ("x-hub-signature-256", f"sha256={digest}") if kind == "github" else ("x-gitea-signature", digest)
        )
        given = headers.get(name, "")
    return hmac.compare_digest(given.encode(), expected.encode())


def pushed_repository(kind: ForgeKind, headers: Mapping[str, str], body: bytes) -> list[str]:
    """Return the URLs of the repository that was pushed to, or none for another event, such as a ping.

    Raises BadRequestError for a push whose body is not JSON.
    """
    name, push = _EVENTS[kind]
    if headers.get(name) != push:
        return []
    try:
        told = decode(body)
        found = told["project"] if kind == "gitlab" else told["repository"]
        names = ("git_http_url", "web_url") if kind == "gitlab" else ("clone_url", "html_url")
        return [found[name] for name in names if isinstance(found.get(name), str)]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadRequestError("The webhook is no push in JSON: set its content type to application/json") from None
