"""Rate limits of keys: requests per second, and the size of a burst."""

from __future__ import annotations

import math
import time
from collections import OrderedDict

from moorage.kernel.errors import TooManyRequestsError

_KEYS_MAX = 10_000


class RateLimit:
    """A limit per process. When it tracks many keys, it forgets those that were not used for the longest time."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._interval_s = 1 / per_s
        self._burst_s = burst * self._interval_s
        self._paid_until: OrderedDict[str, float] = OrderedDict()  # actor -> when its full burst is available again

    def take(self, actor: str) -> None:
        """Count a request. Raises TooManyRequestsError, which says when the next one is accepted."""
        now = time.monotonic()
        paid_until = max(self._paid_until.get(actor, now), now) + self._interval_s
        too_early_s = paid_until - now - self._burst_s
        if too_early_s > 1e-9:  # allows for rounding errors of floats
            raise TooManyRequestsError(
                f"This key asks too often: the limit is {1 / self._interval_s:g} requests a second. Wait, or send more runs "
                "in each request",
                math.ceil(too_early_s),
            )
        self._paid_until[actor] = paid_until
        self._paid_until.move_to_end(actor)
        if len(self._paid_until) > _KEYS_MAX:
            self._paid_until.popitem(last=False)
