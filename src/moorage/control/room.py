"""The room of the control plane: the objects that its routes use, put together by `wiring`."""

from __future__ import annotations

from dataclasses import dataclass

from moorage.control.deployments import Deployments
from moorage.control.image_registry import ImageRegistry
from moorage.control.integrations import Integrations
from moorage.control.listeners import Listeners
from moorage.control.logs import Logs
from moorage.control.oauth.discovery import Discovery
from moorage.control.oauth.providers import OAuthProviders
from moorage.control.oauth.sign_ins import SignIns
from moorage.control.oauth.tokens import OAuthTokens
from moorage.control.revisions import Revisions
from moorage.control.uploads import Uploads


@dataclass(frozen=True)
class Control:
    deployments: Deployments
    revisions: Revisions
    uploads: Uploads
    image_registry: ImageRegistry
    logs: Logs
    oauth_providers: OAuthProviders
    discovery: Discovery
    sign_ins: SignIns
    oauth_tokens: OAuthTokens
    integrations: Integrations
    listeners: Listeners
