"""Tokens of an installed GitHub app: the app signs a JWT, and GitHub returns a token for the installation's
repositories.

Source: docs.github.com/apps ("Generating a JSON Web Token", "Authenticating as an installation").
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from uuid import UUID

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from moorage.control.forges import Forges
from moorage.control.records.integrations import OpenForge

_ALGORITHM = "RS256"
# The JWT is valid from a minute ago, since clocks differ. GitHub accepts a lifetime of at most ten minutes.
_PROOF_BEGAN_S = 60
_PROOF_S = 8 * 60
# A token lasts an hour. It is renewed well before, since a token lacks rights that the app was given after the token
# was made.
_KEPT_S = 300


@dataclass(frozen=True)
class GithubInstallation:
    """A GitHub app that is installed in an organization or account."""

    base_url: str
    app_id: str
    installation_id: int
    private_key: str = field(repr=False)


class InstallationTokens:
    def __init__(self, forges: Forges) -> None:
        self._forges = forges
        self._kept: dict[UUID, tuple[float, OpenForge]] = {}

    async def open(self, integration_id: UUID, app: GithubInstallation) -> OpenForge:
        """Return the forge with a token that lasts at least 55 minutes. Raises as `Forges.installation_token` does."""
        now = time.monotonic()
        self._kept = {key: each for key, each in self._kept.items() if now - each[0] < _KEPT_S}
        if integration_id in self._kept:
            return self._kept[integration_id][1]
        proof = OpenForge("github", app.base_url, await asyncio.to_thread(_proof, app))
        token = await self._forges.installation_token(proof, app.installation_id)
        opened = OpenForge("github", app.base_url, token, is_installation=True)
        self._kept[integration_id] = (now, opened)
        return opened


def check_private_key(pem: str) -> None:
    """Check a key. Raises ValueError unless it is a private RSA key in PEM without a password."""
    try:
        is_private = RSAKey.import_key(pem).is_private
    except (JoseError, ValueError, TypeError, AssertionError):
        is_private = False
    if not is_private:
        raise ValueError("must be the private key that GitHub made for the app, a file that ends with .pem")


def _proof(app: GithubInstallation) -> str:
    now = int(time.time())
    claims = {"iss": app.app_id, "iat": now - _PROOF_BEGAN_S, "exp": now + _PROOF_S}
    return jwt.encode({"alg": _ALGORITHM}, claims, RSAKey.import_key(app.private_key), algorithms=[_ALGORITHM])
