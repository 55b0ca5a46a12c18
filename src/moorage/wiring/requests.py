"""From settings to the limits of requests."""

from __future__ import annotations

from moorage.http.request_limits import RequestLimits
from moorage.settings.agents import AgentSettings
from moorage.settings.platform import PlatformSettings


def request_limits(settings: AgentSettings | PlatformSettings) -> RequestLimits:
    return RequestLimits(
        body_bytes_max=settings.body_bytes_max,
        json_values_max=settings.json_values_max,
        held_bytes_max=settings.held_bytes_max,
        body_bytes_per_s_min=settings.body_bytes_per_s_min,
        body_grace_s=settings.body_grace_s,
        slow_bodies_per_client_max=settings.slow_bodies_per_client_max,
        requests_per_client_max=settings.requests_per_client_max,
        refusals_per_minute=settings.refusals_per_minute,
    )
