"""What a person sees on stderr while a command works: a line that is never the same for two seconds.

The line appears after a second and disappears when the command ends; a closing line says how much was moved, how long
that took and how fast it was. `Bar` takes the numbers, `Speed` computes rate and time left, `line` fits them to the
width of the terminal. The numbers of a stage come from `Progress`, waits and remarks from `core.activity`.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from bayou.cli.output import count, size
from bayou.core import activity
from bayou.core.text import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

_BAR_WIDTHS = (20, 10, 0)
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME_S = 0.125
_RATE_WINDOW_S = 6.0
_LEFT_WINDOW_S = 20.0
_LEFT_AFTER_S = 3.0
_LEFT_SHARE = 0.01
"""Rate and time left are known once this share of the bytes is done, or after the longer window."""
_QUIET_S = 5.0
"""A stage whose numbers have not changed for so long shows that instead of a time left."""
_FILLING_S = 0.25
_MOST_BUFFERED = 4 << 20
"""What the system takes of a request in its first moments, up to so many bytes, fills buffers and has not left yet."""
_CLOSING_S = 1.0
_ON_THE_WAY = frozenset({"reading", "writing", "hashing", "listing"})
"""Stages before and after the transfer that a command is for."""
_MANY_BYTES = 1_000_000
_MINUTE, _HOUR = 60, 3600


class Speed:
    """The recent rate of something that is counted, as a mean whose weights decay with age.

    The weights of the time since the beginning sum up to what has passed, so the mean is right from the start, falls
    to nothing when nothing comes, and follows a change within about a window.
    """

    def __init__(self, window_s: float, begun: float) -> None:
        self._window = window_s
        self._begun = self._last = begun
        self._sum = 0.0

    def add(self, amount: float, now: float) -> None:
        self._sum = self._decayed(now) + amount
        self._last = now

    def rate(self, now: float) -> float:
        """Return the amount for each second."""
        weight = self._window * (1 - math.exp(-(now - self._begun) / self._window))
        return max(0.0, self._decayed(now) / weight) if weight > 0 else 0.0

    def _decayed(self, now: float) -> float:
        return self._sum * math.exp(-(now - self._last) / self._window)


class StageProgress(Struct):
    """A stage: its name, when it began, its totals (0: unknown), and how much of it is done."""

    what: str
    begun: float
    all_files: int = 0
    all_bytes: int = 0
    files: int = 0
    bytes: int = 0
    share: float = 0.0
    changed: float = 0.0
    """When its numbers changed last."""
    changes: int = 0
    first: float = 0.0
    """When its numbers changed first; 0: not yet."""
    early: int = 0
    """How many of `bytes` have arrived in requests, and are not counted yet (`Bar.arrive`)."""

    def change(self, now: float) -> None:
        """Note that its numbers change."""
        self.first = self.first or now
        self.changed, self.changes = now, self.changes + 1

    def known(self, now: float) -> bool:
        """Whether enough has moved to compute a rate with: a small file before a large one says nothing about it."""
        return not self.all_bytes or (self.done or 0) >= _LEFT_SHARE or now - self.begun >= _LEFT_WINDOW_S

    @property
    def done(self) -> float | None:
        """The share of the stage that is done, by bytes if their total is known; None if no total is known."""
        if self.all_bytes:
            return min(1.0, self.bytes / self.all_bytes)
        if self.all_files:
            return min(1.0, self.files / self.all_files)
        return self.share or None

    def so_far(self) -> str:
        """Return the counts, without a total that is not known."""
        parts = []
        if self.all_files or self.files:
            known = f"{min(self.files, self.all_files):,} of {count(self.all_files, 'file')}"
            parts.append(known if self.all_files else count(self.files, "file"))
        return ", ".join([*parts, *([self.bytes_so_far()] if self.all_bytes or self.bytes else [])])

    def bytes_so_far(self) -> str:
        if not self.all_bytes:
            return size(max(0, self.bytes))
        return f"{size(max(0, min(self.bytes, self.all_bytes)))} of {size(self.all_bytes)}"


class _Request(Struct, eq=False):
    """A request under way: the stage it belongs to, its bytes, and how many of them are shown as `arrived`.

    Of a request that sends, the system takes bytes before they leave: at once as many as its buffers hold (`buffered`),
    then as many as have left meanwhile, and at the end none for as long as the buffers empty.
    """

    stage: StageProgress | None
    size: int
    arrived: int = 0
    taken: int = 0
    buffered: int = 0
    first: float = 0.0
    last: float = 0.0

    def take(self, more: int, now: float) -> None:
        """Note bytes that the system has taken."""
        self.first = self.first or now
        self.taken, self.last = self.taken + more, now
        if now - self.first < _FILLING_S and self.taken <= _MOST_BUFFERED:
            self.buffered = self.taken

    def sent(self, now: float) -> int:
        """Return how many of the bytes that the system has taken have left by now, as far as that can be known."""
        left = self.taken - self.buffered
        if self.taken < self.size or not left:
            return left
        rate = left / max(self.last - self.first, _FILLING_S)
        return left + min(self.buffered, int(rate * (now - self.last)))


class Bar:
    """The `Progress` of a terminal, and the watcher of what goes on below a command; any thread may call it.

    It is a context manager, so that it disappears however the command ends. With a delay of None it never shows. The
    thread that waits for the delay imports the drawing library, and the library's own thread draws.
    """

    def __init__(self, *, delay_s: float | None, console: Console | None = None, closing: bool = True) -> None:
        self._closing = closing
        self._timer = threading.Timer(delay_s, self._appear) if delay_s is not None else None
        self._console = console
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._opened = ExitStack()
        self._begun = time.monotonic()
        self._stage: StageProgress | None = None
        self._speeds = self._new_speeds()
        self._waits: dict[object, tuple[str, float]] = {}
        self._remark: str | None = None
        self._moved: dict[str, tuple[int, int]] = {}
        self._skipped = 0
        self._requests: set[_Request] = set()
        self._closed = self._due = False
        self._hiding = 0

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._opened.enter_context(activity.watch(self))
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()
        appeared = self.close()
        seconds = time.monotonic() - self._begun
        files, moved = self._total()
        if self._closing and appeared and kind is None and seconds >= _CLOSING_S and moved > 0:
            sys.stderr.write(f"{closing_line(files, moved, seconds, self._skipped)}\n")
            sys.stderr.flush()

    def close(self) -> bool:
        """Remove the bar, and return whether it was there; later calls have no effect."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._closed = True
            live, self._live = self._live, None
        if live is not None:
            live.stop()  # not under the lock, which drawing takes: stopping draws once more
        return live is not None

    def _total(self) -> tuple[int, int]:
        """Return the files and bytes that the command is about: content that is read twice on its way counts once."""
        transfers = [number for what, number in self._moved.items() if what not in _ON_THE_WAY]
        counted = transfers or [max(self._moved.values(), key=lambda number: number[1], default=(0, 0))]
        return sum(files for files, _ in counted), sum(moved for _, moved in counted)

    def begin(self, what: str, files: int | None, bytes: int | None) -> None:  # noqa: A002
        now = time.monotonic()
        with self._lock:
            self._stage = StageProgress(what, now, files or 0, bytes or 0, changed=now)
            self._speeds = self._new_speeds()
            self._remark = None

    def advance(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        now = time.monotonic()
        with self._lock:
            stage = self._stage
            if stage is None:
                return
            before = self._moved.get(stage.what, (0, 0))
            self._moved[stage.what] = (before[0] + files, before[1] + bytes)
            counted = min(stage.early, max(0, bytes))
            stage.early -= counted
            stage.files += files
            self._add(stage, bytes - counted, now)
            if bytes or files:
                self._remark = None
            if not stage.all_bytes:
                for speed in self._speeds:
                    speed.add(files, now)

    def _add(self, stage: StageProgress, bytes: int, now: float) -> None:  # noqa: A002
        """Show more bytes of the stage; under the lock."""
        stage.bytes += bytes
        stage.change(now)
        if stage.all_bytes:
            for speed in self._speeds:
                speed.add(bytes, now)

    def skip(self, bytes: int) -> None:  # noqa: A002
        now = time.monotonic()
        with self._lock:
            if self._stage is not None and bytes:
                self._skipped += bytes
                self._stage.bytes += bytes
                self._stage.change(now)

    def begin_request(self, size: int) -> _Request:
        with self._lock:
            request = _Request(self._stage, size)
            self._requests.add(request)
        return request

    def arrive(self, request: object, more: int) -> None:
        assert isinstance(request, _Request)
        now = time.monotonic()
        with self._lock:
            self._show(request, more, now)

    def hand_over(self, request: object, more: int) -> None:
        assert isinstance(request, _Request)
        with self._lock:
            request.take(more, time.monotonic())

    def _show(self, request: _Request, more: int, now: float) -> None:
        """Show more bytes of a request; under the lock."""
        request.arrived += more
        if request.stage is not None and request.stage is self._stage:
            request.stage.early += more
            self._add(request.stage, more, now)
            self._remark = None

    def end_request(self, request: object, *, failed: bool) -> None:
        assert isinstance(request, _Request)
        now = time.monotonic()
        with self._lock:
            self._requests.discard(request)
            stage = request.stage
            if failed and stage is not None and stage is self._stage:
                back = min(stage.early, request.arrived)
                stage.early -= back
                self._add(stage, -back, now)

    def share(self, done: float) -> None:
        now = time.monotonic()
        with self._lock:
            if self._stage is not None:
                for speed in self._speeds:
                    speed.add(done - self._stage.share, now)
                self._stage.share = done
                self._stage.change(now)

    def end(self) -> None:
        with self._lock:
            self._stage = self._remark = None

    def begin_wait(self, what: str) -> object:
        wait = object()
        with self._lock:
            self._waits[wait] = (what, time.monotonic())
        return wait

    def end_wait(self, wait: object) -> None:
        with self._lock:
            self._waits.pop(wait, None)

    def remark(self, text: str) -> None:
        with self._lock:
            self._remark = text

    def lines(self, width: int) -> list[str]:
        """Return what to show at this moment, each line no longer than `width`."""
        now = time.monotonic()
        with self._lock:
            spinner = _SPINNER[int((now - self._begun) / _FRAME_S) % len(_SPINNER)]
            waits = list(self._waits.values())
            for request in self._requests:
                if (more := request.sent(now) - request.arrived) > 0 and request.taken:
                    self._show(request, more, now)
            shown = []
            if self._stage is not None:
                recent, steady = (speed.rate(now) for speed in self._speeds)
                unseen = sum(
                    request.size
                    for request in self._requests
                    if request.stage is self._stage and not 0 < request.arrived < request.size
                )
                shown.append(stage_line(self._stage, recent, steady, now, width - 2, unseen))
            elif not waits:
                shown.append(f"working, {duration(now - self._begun)}")
            if waits:
                what, since = waits[-1]
                shown.append(f"{what}, {duration(now - since)}")
            if self._remark is not None:
                shown.append(self._remark)
        return [_fit(f"{spinner if not number else ' '} {visible(text)}", width) for number, text in enumerate(shown)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text  # noqa: PLC0415

        for shown in self.lines(options.max_width):
            yield Text(shown, no_wrap=True, overflow="crop")

    def _appear(self) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.live import Live  # noqa: PLC0415

        console = self._console or Console(stderr=True)
        live = Live(self, console=console, transient=True, refresh_per_second=1 / _FRAME_S, auto_refresh=True)
        with self._lock:
            self._due = self._hiding > 0
            if self._closed or self._due:
                return
            self._live = live
        live.start(refresh=True)
        if self._closed:  # meanwhile
            live.stop()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Show nothing in this block, whose time counts for nothing."""
        begun = time.monotonic()
        with self._lock:
            self._hiding += 1
            live, self._live = self._live, None
            self._due = self._due or live is not None
        if live is not None:
            live.stop()
        try:
            yield
        finally:
            with self._lock:
                self._hiding -= 1
                self._begun += time.monotonic() - begun if not self._hiding else 0.0
                due = self._due and not self._hiding
            if due:
                self._appear()

    @staticmethod
    def _new_speeds() -> tuple[Speed, Speed]:
        now = time.monotonic()
        return Speed(_RATE_WINDOW_S, now), Speed(_LEFT_WINDOW_S, now)


def stage_line(stage: StageProgress, rate: float, steady: float, now: float, width: int, unseen: int = 0) -> str:
    """Return the line of a stage: as much of bar, counts, rate and time as fits into the width.

    `rate` is the recent rate, `steady` the slower one that the time left is computed with. `unseen`: the bytes of
    requests under way of which the libraries below show nothing, or that only lack an answer. Where these are more
    than the bytes so far, or nothing else has moved for a while, neither rate nor time left is known.
    """
    done, quiet, seconds = stage.done, now - stage.changed, now - stage.begun
    if unseen and (unseen > stage.bytes or quiet >= _QUIET_S):
        times, rates = [f"{size(unseen)} under way, {duration(quiet)}"], []
    else:
        times = [_time(stage, done, steady, now)]
        counted = (stage.all_bytes or stage.files) and stage.known(now)
        rates = [_rate(stage, rate)] if counted and rate >= 1 and seconds >= 1 and quiet < _QUIET_S else []
    counts = [stage.so_far()] if stage.so_far() else []
    fewer = [stage.bytes_so_far()] if stage.all_bytes else counts
    tails = [[*counts, *rates, *times], [*fewer, *rates, *times], [*fewer, *times], fewer or times]
    for tail in tails:
        for bar in _BAR_WIDTHS if done is not None else (0,):
            drawn = f" {'━' * round(bar * (done or 0)):─<{bar}}" if bar else ""
            text = f"{stage.what}{drawn} {', '.join(tail)}"
            if len(text) <= width:
                return text
    return text


def _time(stage: StageProgress, done: float | None, rate: float, now: float) -> str:
    """Return the time left if it is known: else, how long the stage has taken, or has been without a change."""
    quiet, seconds = now - stage.changed, now - stage.begun
    moving = now - max(stage.begun, stage.first)
    if stage.changes and done is not None and done < 1 and quiet >= _QUIET_S:
        return f"nothing for {duration(quiet)}"
    if stage.changes > 1 and done and done < 1 and rate > 0 and moving >= _LEFT_AFTER_S and stage.known(now):
        whole = stage.all_bytes or stage.all_files or 1.0
        return f"{_about((1 - done) * whole / rate)} left"
    return duration(seconds)


def _rate(stage: StageProgress, rate: float) -> str:
    if stage.all_bytes:
        return f"{size(round(rate))}/s"
    return f"{count(round(rate), 'file')}/s"


def _about(seconds: float) -> str:
    """Return a time left, no more exact than it is known."""
    if seconds < 10:
        return f"{math.ceil(seconds)} s"
    return duration(5 * math.ceil(seconds / 5)) if seconds < _MINUTE else duration(seconds)


def duration(seconds: float) -> str:
    """Return `12 s`, `3 min`, `1 h 20 min`; below ten minutes with seconds."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < 10 * _MINUTE:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"


def closing_line(files: int, moved: int, seconds: float, skipped: int = 0) -> str:
    """Return what a command has moved, how long it took, how fast that was, and what it did not have to move."""
    what = f"{count(files, 'file')}, {size(moved)}" if files else size(moved)
    took = f"{what} in {seconds:.1f} s" if seconds < _MINUTE else f"{what} in {duration(seconds)}"
    line = f"{took}, {size(round(moved / seconds))}/s" if moved >= _MANY_BYTES else took
    return f"{line}; {size(skipped)} did not have to be moved" if skipped else line


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
