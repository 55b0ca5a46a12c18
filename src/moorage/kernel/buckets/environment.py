"""Environment variables that the bucket library always reads and cannot be told to ignore.

A bucket with credentials of its own must use neither the installation's credentials nor its settings.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from moorage.kernel.errors import BadRequestError

# Used instead of a given key, or in conflict with it.
BEFORE_GOOGLES_KEY = frozenset({"GOOGLE_BEARER_TOKEN", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"})
# Sent along with the key. Amazon's are named as settings, which take precedence over the environment where they are
# given.
BESIDE_AZURES_KEY = frozenset({"AZURE_STORAGE_ENCRYPTION_KEY"})
BESIDE_AMAZONS_KEY = frozenset(
    {
        "aws_server_side_encryption",
        "aws_sse_kms_key_id",
        "aws_sse_bucket_key_enabled",
        "aws_sse_customer_key_base64",
        "aws_checksum_algorithm",
    }
)


def refuse_environment(names: Collection[str]) -> None:
    """Raise BadRequestError if the environment has one of them."""
    if found := set(names) & os.environ.keys():
        raise BadRequestError(
            f"this installation's environment has {min(found)}, which would be used for this destination too"
        )
