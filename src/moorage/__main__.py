"""`python -m moorage` is the same as `moorage`."""

from moorage.cli import app

app()
