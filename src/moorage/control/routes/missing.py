"""Operations of the control plane that are not served yet, by the version of the API. A test fails if a
served operation is still listed.
"""

from __future__ import annotations

from moorage.http.missing import NotServed

NOT_SERVED_V1: NotServed = {}
NOT_SERVED_V2: NotServed = {
    "GitHub integrations": ("* /integrations/github/**",),
    "import of OAuth tokens": ("POST /auth/tokens/import", "* /auth/tokens/exists/batch"),
}
