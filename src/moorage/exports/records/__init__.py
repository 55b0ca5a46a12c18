"""Rows, requests and statuses of bulk export, one file for each kind of resource."""
