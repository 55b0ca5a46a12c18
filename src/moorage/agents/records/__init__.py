"""Rows and requests of the agent server, one file for each kind of resource."""
