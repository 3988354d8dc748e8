"""Points at which a process can be told to die, as a power cut would end it: before or after one step of many."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from bayou.objectstore import keys
from bayou.objectstore.store import Store
from bayou.state.database import Database

KINDS = ("rename", "unlink", "fsync", "transaction", "request", "swap", "swap")
"""The swap is one request of many, and the one that matters most."""

KINDS_OF_UPKEEP = ("rename", "fsync", "transaction", "request", "request", "swap", "swap", "delete", "delete", "delete")
"""Where a process dies that compacts or collects; it deletes objects one by one, so that some may be left."""

_REQUESTS = ("get", "head", "put", "upload", "download", "delete")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Countdown:
    """Dies at the `count`-th step, before or after it is taken."""

    def __init__(self, count: int, *, after: bool) -> None:
        self._left = count
        self._after = after

    def step(self, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        last = self._left == 0
        if last and not self._after:
            die()
        try:
            return real(*args, **kwargs)
        finally:
            if last:
                die()


def arm(kind: str, count: int, *, after: bool) -> None:
    """Make this process die at its `count`-th step of a kind."""
    countdown = Countdown(count, after=after)
    if kind == "rename":
        _replace(os, "replace", countdown)
    elif kind == "unlink":
        _replace(os, "unlink", countdown)
    elif kind == "fsync":
        _replace(os, "fsync", countdown)
    elif kind == "swap":
        _replace(Store, "put", countdown, only=lambda _, key, *__: key == keys.HEAD)
    elif kind == "delete":
        _replace(Store, "delete", countdown)
    elif kind == "request":
        for name in _REQUESTS:
            _replace(Store, name, countdown)
    else:
        _arm_transactions(countdown)


def _replace(owner: Any, name: str, countdown: Countdown, only: Callable[..., bool] = lambda *_: True) -> None:
    real = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        return countdown.step(real, *args, **kwargs) if only(*args) else real(*args, **kwargs)

    setattr(owner, name, counted)


def _arm_transactions(countdown: Countdown) -> None:
    """Die before a transaction is committed, or right after."""
    real = Database.transaction

    @contextmanager
    def transaction(self: Database) -> Any:
        whole = real(self)
        db = whole.__enter__()
        try:
            yield db
        except BaseException as error:
            if not whole.__exit__(type(error), error, error.__traceback__):
                raise
        else:
            countdown.step(whole.__exit__, None, None, None)

    Database.transaction = transaction  # type: ignore[method-assign]
