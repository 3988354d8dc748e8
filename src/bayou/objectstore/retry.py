"""Retries: a client sends each request until it succeeds, fails for good, or runs out of time (V12).

`RetryPolicy` decides whether to retry and how long to wait first; `RetryingClient` sends, waits and counts.
"""

from __future__ import annotations

import math
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
from bayou.objectstore.link import COUNTS_FROM, Link
from bayou.objectstore.threads import run_interruptible
from bayou.objectstore.transport import RequestCounter, Verb

R = TypeVar("R")


class RetryPolicy(Struct, frozen=True):
    """Jittered exponential backoff, bounded by a number of attempts and by the caller's deadline."""

    attempts: int = 8
    first_contact_attempts: int = 3
    first_contact_timeout_s: float = 30.0
    """The limit of a request that moves no content, to a store that has not answered yet."""
    silent_attempts: int = 2
    """Attempts of such a request if the store stays silent and no deadline of the caller ends them."""
    stalled_attempts: int = 4
    """Attempts of any other request that gets no answer in time and that no deadline ends."""
    base_s: float = 0.1
    cap_s: float = 5.0
    request_timeout_s: float = 60.0
    least_rate: float = 128 * 1024
    """Bytes a second that a link has at least, until its rate is measured (`link`)."""
    call_deadline_s: float = 180.0
    """Seconds for a call without a deadline that moves no content; one that does has no limit but that of a stall."""

    def should_retry(
        self, error: StoreError, attempt: int, *, contacted: bool, ends: bool = True, moves: bool = True
    ) -> bool:
        """Return whether to retry a request whose attempt number `attempt` (from 1) failed.

        The client gives up sooner on a store that never answered: a mistyped address is likelier than a restart.
        `ends`: a deadline of the caller bounds the attempts too. `moves`: the request moves content.
        """
        if not error.retryable:
            return False
        if isinstance(error, CannotConnect) and not contacted:
            return attempt < min(self.attempts, self.first_contact_attempts)
        if isinstance(error, TimedOut) and not ends:
            return attempt < min(self.attempts, self.stalled_attempts if contacted or moves else self.silent_attempts)
        return attempt < self.attempts

    def backoff(self, attempt: int) -> float:
        """Return the seconds to wait after failure number `attempt`."""
        return min(self.cap_s, self.base_s * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)


SWAP_BACKOFF = RetryPolicy(base_s=0.05, cap_s=2.0)
"""The waits after a lost compare-and-swap of the head."""


class RetryingClient:
    """Sends the requests of one store, under the caller's deadline or, without one, a deadline per call.

    The views of a store share the counter, the link, and `contacted`, which is set once the store has answered.
    """

    def __init__(
        self,
        url: str,
        policy: RetryPolicy,
        *,
        counter: RequestCounter | None = None,
        contacted: threading.Event | None = None,
        deadline: Deadline | None = None,
        link: Link | None = None,
    ) -> None:
        self.url = url
        self.policy = policy
        self.link = link or Link()
        self.counter = counter or RequestCounter()
        self.contacted = contacted or threading.Event()
        self.deadline = deadline

    def within(self, deadline: Deadline) -> RetryingClient:
        """Return a view of this client whose calls all end by `deadline`."""
        return self._view(self.policy, deadline)

    def with_request_timeout(self, seconds: float) -> RetryingClient:
        """Return a view of this client that limits each request to `seconds`, or to the present limit if shorter."""
        policy = replace(self.policy, request_timeout_s=min(seconds, self.policy.request_timeout_s))
        return self._view(policy, self.deadline)

    def for_operation(self, deadline: Deadline | None) -> RetryingClient:
        """Return a client with counts of its own that has not contacted the store yet; the link stays the same."""
        return RetryingClient(self.url, self.policy, deadline=deadline, link=self.link)

    def _view(self, policy: RetryPolicy, deadline: Deadline | None) -> RetryingClient:
        return RetryingClient(
            self.url, policy, counter=self.counter, contacted=self.contacted, deadline=deadline, link=self.link
        )

    def send(
        self,
        verb: Verb,
        key: Key,
        call: Callable[[float], R],
        *,
        bytes_out: int = 0,
        bytes_expected: int = 0,
        deadline: Deadline | None = None,
    ) -> R:
        """Send one request until it succeeds, fails for good, or runs out of time.

        A request with content waits until the link has room for it, and its limit grows with what is under way.
        """
        size = bytes_out + bytes_expected
        deadline = deadline or self.call_deadline(size)
        flow = self.link.up if bytes_out else self.link.down
        attempt = 1
        while True:
            try:
                self.link.pace(size, deadline)
                with flow.moving(size, deadline) as begun:
                    moving = flow.seconds(size, self.policy.least_rate) if size else 0
                    timeout = self.request_timeout(deadline, moving, moves=size >= COUNTS_FROM)
                    self.counter.sent(verb, bytes_out=bytes_out)
                    send = partial(call, timeout)
                    answer = run_interruptible(activity.counted(size, send) if size >= COUNTS_FROM else send)
            except StoreError as error:
                tries = attempt
                if isinstance(error, TimedOut):
                    if size >= COUNTS_FROM:
                        # Others wait for room while this request stalls: without this, each would stall in its turn.
                        stalls = flow.stalled(begun)
                        tries = attempt if math.isfinite(deadline.seconds) else max(attempt, stalls)
                elif not isinstance(error, CannotConnect):
                    self.contacted.set()
                self.wait_or_raise(error, tries, f"{verb.upper()} {key}", deadline, moves=size >= COUNTS_FROM)
                attempt += 1
            else:
                if not self.contacted.is_set():
                    self.contacted.set()
                return answer

    def wait_or_raise(
        self, error: StoreError, attempt: int, what: str, deadline: Deadline, *, moves: bool = False
    ) -> None:
        """Wait before the next attempt; raise the error if it is final, `DeadlinePassed` if time runs out."""
        contacted, ends = self.contacted.is_set(), self.deadline is not None and math.isfinite(self.deadline.seconds)
        if not self.policy.should_retry(error, attempt, contacted=contacted, ends=ends, moves=moves):
            raise error
        activity.remark(f"trying again, {attempt + 1} of {self.policy.attempts}: {error.message}")
        try:
            deadline.sleep(self.policy.backoff(attempt))
        except DeadlinePassed as passed:
            message = f"{passed.message}: {what} on {self.url}: {error.message}"
            raise DeadlinePassed(message, hint=error.hint or passed.hint) from error

    def call_deadline(self, size: int = 0) -> Deadline:
        """Return the deadline of a call that begins now, and moves so many bytes of content."""
        return self.deadline or Deadline.after(None if size >= COUNTS_FROM else self.policy.call_deadline_s)

    def request_timeout(self, deadline: Deadline, moving: float = 0, *, moves: bool = False) -> float:
        """Return how long one request may take whose content needs so many seconds; raise if the deadline is over."""
        limit = self.policy.request_timeout_s
        if not moves and not self.contacted.is_set():
            limit = min(limit, self.policy.first_contact_timeout_s)
        return min(limit + moving, deadline.remaining())
