"""Deliveries of webhooks."""

from __future__ import annotations

from enum import StrEnum


class DeliveryStatus(StrEnum):
    """Of a webhook. Pending and sending alternate until one of the others ends it."""

    PENDING = "pending"
    SENDING = "sending"
    DELIVERED = "delivered"
    FAILED = "failed"
