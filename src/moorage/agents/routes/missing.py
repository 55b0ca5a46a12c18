"""Operations of agent servers that are not served yet. A test fails if a served operation is still listed."""

from __future__ import annotations

from moorage.http.missing import NotServed

NOT_SERVED: NotServed = {
    "A2A": ("* /a2a/**", "GET /.well-known/agent-card.json"),
    "MCP": ("* /mcp/**",),
    "the generative UI": ("* /ui/**",),
}
