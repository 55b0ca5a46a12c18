"""Operations beside traces that clients know and that are not served yet. Whoever serves one removes its line; a test sees
to it.
"""

from __future__ import annotations

from moorage.http.missing import NotServed

NOT_SERVED: NotServed = {
    "annotation queues": ("* /annotation-queues/**",),
    "charts": ("* /charts/**",),
    "datasets": ("* /datasets/**", "* /v1/platform/datasets/**", "* /platform/datasets/**"),
    "evaluators": ("POST /runs/experiments/{experiment_id}/evaluate", "* /runs/rules/**", "* /evaluators/**"),
    "examples": ("* /examples/**", "* /v1/platform/examples/**", "* /platform/examples/**"),
    "insights": ("* /sessions/{session_id}/insights/**",),
    "OTLP": ("POST /otel/v1/traces",),
    "prompts": ("* /repos/**", "* /commits/**", "* /likes/**", "* /prompts/**", "* /playground-settings/**"),
    "queries in plain language": ("POST /runs/generate-query",),
    "share links": ("* /runs/{run_id}/share", "* /public/**"),
    "usage limits": ("* /usage-limits/**",),
    "workspace secrets": ("* /workspaces/current/secrets/**",),
}
