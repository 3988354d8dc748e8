"""Retries: a client sends each request until it succeeds, fails for good, or runs out of time (V12).

`RetryPolicy` decides whether to retry and how long to wait first; `RetryingClient` sends, waits and counts.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bayou.core import activity
from bayou.core.deadline import Deadline
from bayou.core.errors import CannotConnect, DeadlinePassed, StoreError, TimedOut
from bayou.objectstore.keys import Key
from bayou.objectstore.threads import run_interruptible
from bayou.objectstore.transport import RequestCounter, Verb

R = TypeVar("R")


class RetryPolicy(Struct, frozen=True):
    """Jittered exponential backoff, bounded by a number of attempts and by the caller's deadline."""

    attempts: int = 8
    first_contact_attempts: int = 3
    base_s: float = 0.1
    cap_s: float = 5.0
    request_timeout_s: float = 60.0
    least_rate: float = 128 * 1024
    """Bytes a second that a link has at least: a request that moves many bytes may take longer."""
    call_deadline_s: float = 180.0

    def should_retry(self, error: StoreError, attempt: int, *, contacted: bool) -> bool:
        """Say whether to retry a request whose attempt number `attempt` (from 1) failed.

        The client gives up sooner on a store that never answered: a mistyped address is likelier than a restart.
        """
        if not error.retryable:
            return False
        limit = self.attempts if contacted or not isinstance(error, CannotConnect) else self.first_contact_attempts
        return attempt < limit

    def backoff(self, attempt: int) -> float:
        """Return the seconds to wait after failure number `attempt`."""
        return min(self.cap_s, self.base_s * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)


class RetryingClient:
    """Sends the requests of one store, under the caller's deadline or, without one, a deadline per call.

    The views of a store share the counter and `contacted`, which is set once the store has answered.
    """

    def __init__(
        self,
        url: str,
        policy: RetryPolicy,
        *,
        counter: RequestCounter | None = None,
        contacted: threading.Event | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self.url = url
        self.policy = policy
        self.counter = counter or RequestCounter()
        self.contacted = contacted or threading.Event()
        self.deadline = deadline

    def within(self, deadline: Deadline) -> RetryingClient:
        """Return a view of this client whose calls all end by `deadline`."""
        return RetryingClient(self.url, self.policy, counter=self.counter, contacted=self.contacted, deadline=deadline)

    def with_request_timeout(self, seconds: float) -> RetryingClient:
        """Return a view of this client that limits each request to `seconds`, or to the present limit if shorter."""
        policy = replace(self.policy, request_timeout_s=min(seconds, self.policy.request_timeout_s))
        return RetryingClient(self.url, policy, counter=self.counter, contacted=self.contacted, deadline=self.deadline)

    def send(
        self,
        verb: Verb,
        key: Key,
        call: Callable[[float], R],
        *,
        requests: int = 1,
        bytes_out: int = 0,
        bytes_expected: int = 0,
        deadline: Deadline | None = None,
    ) -> R:
        """Send one request until it succeeds, fails for good, or runs out of time.

        The limit of a single request grows with the bytes that it sends or expects.
        """
        deadline = deadline or self.call_deadline()
        attempt = 1
        while True:
            timeout = self.request_timeout(deadline, (bytes_out + bytes_expected) / requests)
            self.counter.sent(verb, requests, bytes_out=bytes_out)
            try:
                answer = run_interruptible(partial(call, timeout))
            except StoreError as error:
                if not isinstance(error, CannotConnect | TimedOut):
                    self.contacted.set()
                self.wait_or_raise(error, attempt, f"{verb.upper()} {key}", deadline)
                attempt += 1
            else:
                if not self.contacted.is_set():
                    self.contacted.set()
                return answer

    def wait_or_raise(self, error: StoreError, attempt: int, what: str, deadline: Deadline) -> None:
        """Wait before the next attempt; raise the error if it is final, `DeadlinePassed` if time runs out."""
        if not self.policy.should_retry(error, attempt, contacted=self.contacted.is_set()):
            raise error
        activity.remark(f"trying again, {attempt + 1} of {self.policy.attempts}: {error.message}")
        try:
            deadline.sleep(self.policy.backoff(attempt))
        except DeadlinePassed as passed:
            message = f"{passed.message}: {what} on {self.url}: {error.message}"
            raise DeadlinePassed(message, hint=error.hint or passed.hint) from error

    def call_deadline(self) -> Deadline:
        """Return the deadline of a call that begins now."""
        return self.deadline or Deadline.after(self.policy.call_deadline_s)

    def request_timeout(self, deadline: Deadline, moved: float = 0) -> float:
        """Return how long one request that moves so many bytes may take; raise if the deadline has passed."""
        return min(self.policy.request_timeout_s + moved / self.policy.least_rate, deadline.remaining())
