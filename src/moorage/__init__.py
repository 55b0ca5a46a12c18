"""moorage: the open, self-hosted home for LangGraph agents."""

from importlib.metadata import version

__version__ = version("moorage")
