"""Deliveries of webhooks, and their statuses."""

from __future__ import annotations

from enum import StrEnum


class DeliveryStatus(StrEnum):
    """Status of a webhook's delivery. It alternates between pending and sending until one of the others ends it."""

    PENDING = "pending"
    SENDING = "sending"
    DELIVERED = "delivered"
    FAILED = "failed"
