"""Operations of agent servers that are not served yet. Whoever serves one removes its line; a test sees to it."""

from __future__ import annotations

from moorage.http.missing import NotServed

NOT_SERVED: NotServed = {
    "A2A": ("* /a2a/**", "GET /.well-known/agent-card.json"),
    "MCP": ("* /mcp/**",),
    "the generative UI": ("* /ui/**",),
}
