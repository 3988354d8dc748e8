"""When to try a request again, and how long to wait before it."""

from __future__ import annotations

import random

from msgspec import Struct

from bayou.core.errors import CannotConnect, StoreError


class RetryPolicy(Struct, frozen=True):
    """Jittered exponential backoff, bounded by a number of attempts and by the caller's deadline."""

    attempts: int = 8
    first_contact_attempts: int = 3
    base_s: float = 0.1
    cap_s: float = 5.0
    request_timeout_s: float = 60.0
    call_deadline_s: float = 180.0

    def again(self, error: StoreError, attempt: int, *, contacted: bool) -> bool:
        """Whether the request that failed as number `attempt` (from 1) is worth repeating.

        A store that was never reached is given up sooner: it is rather mistyped than restarting.
        """
        if not error.retryable:
            return False
        limit = self.attempts if contacted or not isinstance(error, CannotConnect) else self.first_contact_attempts
        return attempt < limit

    def pause(self, attempt: int) -> float:
        """Seconds to wait after failure number `attempt`."""
        return min(self.cap_s, self.base_s * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)
