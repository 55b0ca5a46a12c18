"""Nouns of the agent server, one file each."""
