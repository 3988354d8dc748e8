"""Force an interleaving: let somebody else act just before the n-th request of a command."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import bayou.objectstore.open as opening
from bayou.objectstore.backends.directory import LocalTransport
from bayou_testing.faulty import FaultyTransport, Seen, Verb


@dataclass
class Turns:
    """The requests of a command on directory stores, and who comes in between. `seen` are those of the command."""

    at: int = 0
    between: Callable[[], object] = lambda: None
    seen: list[Seen] = field(default_factory=list)
    came: bool = False
    _busy: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def before(self, number: int, between: Callable[[], object]) -> None:
        """Let `between` happen before request number `number` (from 1) of what follows, and all of it at once."""
        self.at, self.between, self.came = number, between, False
        self.seen.clear()

    def meet(self, verb: Verb, key: str) -> None:
        with self._lock:
            self.seen.append(Seen(verb, key))
            if len(self.seen) == self.at:
                self.came = self._busy = True
                try:
                    self.between()
                finally:
                    self._busy = False

    def transport(self, place: Any, _: object) -> FaultyTransport:
        inner = LocalTransport(Path(place.bucket))
        return FaultyTransport(inner) if self._busy or not self.at else _Watched(inner, turns=self)


@dataclass
class _Watched(FaultyTransport):
    turns: Turns = field(default_factory=Turns)

    def _meet(self, verb: Verb, key: str) -> Any:
        self.turns.meet(verb, key)
        return super()._meet(verb, key)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    """Watch the requests to directory stores, one command at a time."""
    turns = Turns()
    monkeypatch.setitem(opening.BUILT_IN, "file", turns.transport)
    return turns


def meanwhile(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, step: Callable[[], object]) -> None:
    """Let `step` happen right before the next call of a function, once."""
    real = getattr(owner, name)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        step()
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)
