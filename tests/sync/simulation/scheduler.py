"""Clients as threads of which one runs at a time: a baton goes round, and the seed says who gets it."""

from __future__ import annotations

import random
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_STUCK_S = 90.0


class Stuck(AssertionError):
    """The client that has the baton waits for something else: a lock that another one holds."""


@dataclass(eq=False)
class Actor:
    """One command on its way. `at` is the step that it waits to take."""

    name: str
    call: Callable[[], Any]
    turn: threading.Lock = field(default_factory=threading.Lock)
    at: str = "begin"
    done: bool = False
    result: Any = None
    error: BaseException | None = None
    ident: int = 0
    about: tuple[str, int, int] = ("", 0, 0)
    """What the command is; how much programs had done, and how many heads there had been, when it began."""


class Scheduler:
    """Lets one thread run at a time. Everything between two steps of an actor is one indivisible act."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._main = threading.Lock()
        self._main.acquire()
        self.actors: list[Actor] = []
        self._current: Actor | None = None
        self._patience = 1.0
        self._favourite: Actor | None = None

    def start(self, name: str, call: Callable[[], Any]) -> Actor:
        """Add a command; it does nothing before it is chosen."""
        actor = Actor(name, call)
        actor.turn.acquire()
        self.actors.append(actor)
        threading.Thread(target=self._body, args=(actor,), name=f"sim-{name}", daemon=True).start()
        return actor

    def step(self, label: str) -> None:
        """Wait for one's turn; called in a client's thread before each thing that others could see or suffer from."""
        actor = self._current
        if actor is None or threading.get_ident() != actor.ident:
            return  # the scheduler's own thread: setting up, a program's write, looking
        actor.at = label
        self._main.release()
        actor.turn.acquire()

    @property
    def current(self) -> Actor | None:
        return self._current

    @property
    def inside(self) -> bool:
        """Whether the caller is a client's thread."""
        return self._current is not None and threading.get_ident() == self._current.ident

    def mood(self, patience: float) -> None:
        """Say how likely the one that runs is to run on: 0 is fair, near 1 lets the others stall for long."""
        self._patience = patience

    def choose(self) -> Actor:
        """Pick who goes on."""
        if self._favourite not in self.actors or self._rng.random() >= self._patience:
            self._favourite = self._rng.choice(self.actors)
        assert self._favourite is not None
        return self._favourite

    def resume(self, actor: Actor) -> None:
        """Let one actor run to its next step, or its end."""
        self._current = actor
        actor.turn.release()
        if not self._main.acquire(timeout=_STUCK_S):
            raise Stuck(f"{actor.name} after {actor.at!r}:\n{_stack(actor)}")
        self._current = None
        if actor.done:
            self.actors.remove(actor)

    def _body(self, actor: Actor) -> None:
        actor.ident = threading.get_ident()
        actor.turn.acquire()
        try:
            actor.result = actor.call()
        except BaseException as error:  # noqa: BLE001  (told to whoever waits for it)
            actor.error = error
        actor.done = True
        self._main.release()


def _stack(actor: Actor) -> str:
    frame = sys._current_frames().get(actor.ident)
    return "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)"
