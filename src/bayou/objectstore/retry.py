"""Send requests: each until it succeeds, its failure is final, or time is up (V12).

When to try a request again, and how long to wait before it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bayou.core.deadline import Deadline
from bayou.core.errors import CannotConnect, DeadlinePassed, StoreError, TimedOut
from bayou.objectstore.keys import Key
from bayou.objectstore.threads import run_interruptible
from bayou.objectstore.transport import RequestCounter, Verb


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


R = TypeVar("R")


class RetryingClient:
    """How one store's requests are sent, under a deadline of the caller's or one of each call's own.

    Views of a store share what was counted, and whether anybody ever answered.
    """

    def __init__(self, url: str, policy: RetryPolicy, meter: RequestCounter, contacted: threading.Event) -> None:
        self.url = url
        self.policy = policy
        self.meter = meter
        self.contacted = contacted
        self.deadline: Deadline | None = None

    def within(self, deadline: Deadline) -> RetryingClient:
        """Return the same under a deadline."""
        view = RetryingClient(self.url, self.policy, self.meter, self.contacted)
        view.deadline = deadline
        return view

    def with_request_timeout(self, seconds: float) -> RetryingClient:
        """Return the same, with a limit on each request of `seconds`, if it is not shorter already."""
        timeout = min(seconds, self.policy.request_timeout_s)
        view = RetryingClient(self.url, replace(self.policy, request_timeout_s=timeout), self.meter, self.contacted)
        view.deadline = self.deadline
        return view

    def send(
        self,
        verb: Verb,
        key: Key,
        call: Callable[[float], R],
        *,
        requests: int = 1,
        bytes_out: int = 0,
        deadline: Deadline | None = None,
    ) -> R:
        """Send one request until it succeeds, its failure is final, or time is up."""
        deadline = deadline or self.bound()
        attempt = 1
        while True:
            timeout = self.timeout(deadline)
            self.meter.sent(verb, requests, bytes_out=bytes_out)
            try:
                answer = run_interruptible(partial(call, timeout))
            except StoreError as error:
                if not isinstance(error, CannotConnect | TimedOut):
                    self.contacted.set()
                self.pause(error, attempt, f"{verb.upper()} {key}", deadline)
                attempt += 1
            else:
                if not self.contacted.is_set():
                    self.contacted.set()
                return answer

    def pause(self, error: StoreError, attempt: int, what: str, deadline: Deadline) -> None:
        """Wait before the next attempt, or raise: the error if it is final, the deadline if that comes first."""
        if not self.policy.again(error, attempt, contacted=self.contacted.is_set()):
            raise error
        try:
            deadline.sleep(self.policy.pause(attempt))
        except DeadlinePassed as passed:
            message = f"{passed.message}: {what} on {self.url}: {error.message}"
            raise DeadlinePassed(message, hint=error.hint or passed.hint) from error

    def bound(self) -> Deadline:
        """Return the deadline that counts for a call that begins now."""
        return self.deadline or Deadline.after(self.policy.call_deadline_s)

    def timeout(self, deadline: Deadline) -> float:
        """Return how long one request may take; raise when time is up."""
        return min(self.policy.request_timeout_s, deadline.remaining())
