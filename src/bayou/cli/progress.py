"""A bar on stderr for whoever waits; it appears after a second, and leaves nothing behind."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

from bayou.cli.units import count, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Display
    from rich.progress import TaskID


class Bar:
    """The `Progress` of a terminal. Enter it, so that it is gone when the command ends, however that is.

    With a delay of None it never shows. The drawing library is loaded by the thread that waits for the delay.
    """

    def __init__(self, *, delay_s: float | None, console: Console | None = None) -> None:
        self._timer = threading.Timer(delay_s, self._appear) if delay_s is not None else None
        self._console = console
        self._lock = threading.Lock()
        self._display: Display | None = None
        self._task: TaskID | None = None
        self._what: str | None = None
        self._done = self._total = (0, 0)
        self._closed = False

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._display is not None:
                self._display.stop()

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        with self._lock:
            self._what, self._done, self._total = what, (0, 0), (files or 0, bytes or 0)
            self._draw_stage()

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        with self._lock:
            self._done = (self._done[0] + files, self._done[1] + bytes)
            if self._display is not None and self._task is not None:
                self._display.update(self._task, completed=self._done[self._unit], so_far=self._so_far())

    def end(self) -> None:
        with self._lock:
            self._what = None
            self._draw_stage()

    def _appear(self) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[so_far]}"))
        console = self._console or Console(stderr=True)
        display = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        with self._lock:
            if self._closed:
                return
            display.start()
            self._display = display
            self._draw_stage()

    def _draw_stage(self) -> None:
        """Show the current stage and no other; the caller holds the lock."""
        if self._display is None:
            return
        if self._task is not None:
            self._display.remove_task(self._task)
            self._task = None
        if self._what is not None:
            total, done = self._total[self._unit] or None, self._done[self._unit]
            self._task = self._display.add_task(self._what, total=total, completed=done, so_far=self._so_far())

    @property
    def _unit(self) -> int:
        """What the bar measures: bytes say more than files, where anybody knows how many there are."""
        return 1 if self._total[1] else 0

    def _so_far(self) -> str:
        (files, moved), (all_files, all_bytes) = self._done, self._total
        if not all_files:
            return f"{count(files, 'file')}, {size(moved)}"
        return f"{files:,} of {count(all_files, 'file')}, {size(moved)} of {size(all_bytes)}"
