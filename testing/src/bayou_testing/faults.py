"""Faults for a test server: which request, and what happens to it.

    faults.add(Rule(Fail(503), method="PUT", path=r"/head\\.json$", nth=1))
    faults.add(Rule(LoseResponse(), method="PUT", times=1), Rule(Delay(0.2), every=10))

Every rule counts the requests that it fits. Of the actions that are due, the pauses (`Delay`, `Hold`) all happen, in
order; then the first of the others decides the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from threading import Event, Lock

from msgspec import Struct, field


class Fail(Struct, frozen=True):
    """Answer this instead. `applied`: the request takes effect first, and only its answer is replaced."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    applied: bool = False


class Delay(Struct, frozen=True):
    """Wait before the request takes effect."""

    seconds: float


class Hold(Struct, frozen=True):
    """Set `arrived`, then wait for `release` before the request takes effect: forces an interleaving."""

    release: Event
    arrived: Event = field(default_factory=Event)


class Truncate(Struct, frozen=True):
    """Announce the whole body, send so many bytes of it, and close. The request takes effect."""

    keep: int


class LoseResponse(Struct, frozen=True):
    """Let the request take effect, then close without an answer."""


class Late(Struct, frozen=True):
    """Let the request take effect at once, and answer it after so many seconds."""

    seconds: float


class Reset(Struct, frozen=True):
    """Reset the connection before anything takes effect."""


class Garbage(Struct, frozen=True):
    """Answer 200 with this body, without doing anything."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Silent(Struct, frozen=True):
    """Never answer, and do nothing; the connection stays open until the server closes."""


Pause = Delay | Hold
Action = Pause | Fail | Truncate | LoseResponse | Late | Reset | Garbage | Silent


def takes_effect(action: Action | None) -> bool:
    """Whether a request that this action decides about is carried out."""
    match action:
        case Fail(applied=applied):
            return applied
        case Reset() | Garbage() | Silent():
            return False
    return True


class Rule(Struct, frozen=True, eq=False):
    """Apply `action` to requests of this method whose decoded path has a match of `path`, and query one of `query`.

    All of them, unless: `nth` starts at the n-th (from 1), and is then the only one if nothing else is said; `every`
    takes each n-th; `times` stops after so many.
    """

    action: Action
    method: str | None = None
    path: str | None = None
    query: str | None = None
    nth: int | None = None
    times: int | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        if any(number is not None and number < 1 for number in (self.nth, self.times, self.every)):
            raise ValueError("nth, times and every count from 1")

    def fits(self, method: str, path: str, query_string: str) -> bool:
        return (
            (self.method is None or self.method == method)
            and (self.path is None or re.search(self.path, path) is not None)
            and (self.query is None or re.search(self.query, query_string) is not None)
        )

    def due(self, number: int) -> bool:
        """Whether the action applies to the n-th request that fits."""
        step = self.every or 1
        first = self.nth or step
        times = 1 if self.times is None and self.nth is not None and self.every is None else self.times
        turn, rest = divmod(number - first, step)
        return turn >= 0 and rest == 0 and (times is None or turn < times)


class Faults:
    """The rules of one server (or of several that share them). Any thread may change them at any time."""

    def __init__(self, *rules: Rule) -> None:
        self._lock = Lock()
        self._seen: dict[Rule, int] = dict.fromkeys(rules, 0)
        self._applied: dict[Rule, int] = dict.fromkeys(rules, 0)

    def add(self, *rules: Rule) -> None:
        """Add rules behind those that are there; each starts to count now."""
        with self._lock:
            for rule in rules:
                self._seen[rule] = self._applied[rule] = 0

    def clear(self) -> None:
        """Drop all rules. Requests that are paused or silent stay so."""
        with self._lock:
            self._seen.clear()
            self._applied.clear()

    def applied(self, rule: Rule) -> int:
        """Count the requests that the rule's action was applied to."""
        with self._lock:
            return self._applied.get(rule, 0)

    def take(self, method: str, path: str, query_string: str = "") -> Sequence[Action]:
        """Count this request with every rule that it fits, and return the actions to apply."""
        actions: list[Action] = []
        decided = False
        with self._lock:
            for rule in self._seen:
                if not rule.fits(method, path, query_string):
                    continue
                self._seen[rule] += 1
                pause = isinstance(rule.action, Pause)
                if rule.due(self._seen[rule]) and (pause or not decided):
                    decided = decided or not pause
                    self._applied[rule] += 1
                    actions.append(rule.action)
        return actions
