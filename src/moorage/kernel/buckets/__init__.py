"""Buckets: S3 and what speaks its language, Google Cloud, Azure, or a directory; one class and one set of faults for all.

The bucket library takes its settings from the environment too: what a destination says is set one by one, so that nothing
of the installation's own leaks into it.
"""
