"""Buckets: S3 and compatible stores, Google Cloud, Azure, or a directory, behind one class with one set of faults.

The bucket library also reads settings from the environment. All settings of a destination are therefore given
explicitly, so that none of the installation's own settings apply.
"""
