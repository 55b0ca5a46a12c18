"""moorage: the open, self-hosted home for LangGraph agents."""

import sys
from importlib.metadata import version

# Both load rich where it is installed, for tracebacks that print local variables and for a command line. Ours do neither,
# and each process would be 4 MB larger.
if not {"rich", "pygments"} & sys.modules.keys():
    sys.modules["rich"] = None  # type: ignore[assignment]
    sys.modules["pygments"] = None  # type: ignore[assignment]
    import httpx as httpx
    import structlog as structlog

    del sys.modules["rich"], sys.modules["pygments"]

__version__ = version("moorage")
