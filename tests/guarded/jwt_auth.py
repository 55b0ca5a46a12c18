"""Users by the tokens of an identity provider, from which the keys are fetched."""

from __future__ import annotations

import os
from typing import Any

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from langgraph_sdk import Auth

auth = Auth()
ISSUER = os.environ["TEST_ISSUER"]
CLAIMS = jwt.JWTClaimsRegistry(
    iss={"essential": True, "value": ISSUER}, aud={"essential": True, "value": "agents"}, exp={"essential": True}
)


async def keys() -> KeySet:
    async with httpx.AsyncClient(trust_env=False) as client:
        return KeySet.import_key_set((await client.get(f"{ISSUER}/jwks")).json())


@auth.authenticate
async def authenticate(authorization: str | None) -> dict[str, Any]:
    scheme, _, token = (authorization or "").partition(" ")
    try:
        assert scheme.lower() == "bearer", "Send a token"
        claims = jwt.decode(token, await keys(), algorithms=["RS256"]).claims
        CLAIMS.validate(claims)
    except (JoseError, ValueError) as error:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Invalid token") from error
    return {"identity": claims["sub"], "permissions": claims.get("scope", "").split()}


@auth.on
async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
    value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}
