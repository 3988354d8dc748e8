"""A progress bar on stderr. It appears after a second, and disappears when the command ends."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from bayou.cli.output import count, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Display
    from rich.progress import TaskID

_WIDTH = 20
"""Width of the bar itself: with the numbers beside it, a stage fits on a line of a narrow terminal."""


class Bar:
    """The `Progress` of a terminal. It is a context manager, so that it disappears however the command ends.

    With a delay of None it never shows. The thread that waits for the delay imports the drawing library.
    """

    def __init__(self, *, delay_s: float | None, console: Console | None = None) -> None:
        self._timer = threading.Timer(delay_s, self._appear) if delay_s is not None else None
        self._console = console
        self._lock = threading.Lock()
        self._display: Display | None = None
        self._task: TaskID | None = None
        self._what: str | None = None
        self._done = self._total = (0, 0)
        self._share = 0.0
        self._begun = 0.0
        self._closed = False

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar; later calls have no effect."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._display is not None:
                self._display.stop()

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        with self._lock:
            self._what, self._done, self._total = what, (0, 0), (files or 0, bytes or 0)
            self._share, self._begun = 0.0, time.monotonic()
            self._draw_stage()

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        with self._lock:
            self._done = (self._done[0] + files, self._done[1] + bytes)
            self._update()

    def share(self, done: float) -> None:
        with self._lock:
            self._share = done
            self._update()

    def end(self) -> None:
        with self._lock:
            self._what = None
            self._draw_stage()

    def _appear(self) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

        columns = (TextColumn("{task.description}"), BarColumn(_WIDTH), TextColumn("{task.fields[so_far]}"))
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
        if self._display is None or self._closed:
            return
        if self._task is not None:
            self._display.remove_task(self._task)
            self._task = None
        if self._what is not None:
            self._task = self._display.add_task(self._what, total=None, so_far="")
            self._update()

    def _update(self) -> None:
        """Show the present numbers; the caller holds the lock."""
        if self._display is None or self._task is None or self._closed:
            return
        total: float | None = self._total[self._unit]
        done: float = self._done[self._unit]
        if not total and self._share:
            total, done = 1.0, self._share
        self._display.update(self._task, total=total or None, completed=done, so_far=self._so_far())

    @property
    def _unit(self) -> int:
        """What the bar measures: 1 for bytes if their total is known, else 0 for files."""
        return 1 if self._total[1] else 0

    def _so_far(self) -> str:
        (files, moved), (all_files, all_bytes) = self._done, self._total
        if not (all_files or files or moved):
            return ""  # this stage counts nothing
        known = f"{files:,} of {count(all_files, 'file')}" if all_files else count(files, "file")
        if all_bytes or moved:
            known += f", {size(moved)} of {size(all_bytes)}" if all_bytes else f", {size(moved)}"
        seconds = time.monotonic() - self._begun
        return f"{known}, {self._rate(seconds)}" if files and seconds > 1 else known

    def _rate(self, seconds: float) -> str:
        """Return the average speed since the stage began."""
        files, moved = self._done
        return f"{size(round(moved / seconds))}/s" if self._unit else f"{count(round(files / seconds), 'file')}/s"
