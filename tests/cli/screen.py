"""A terminal that remembers what it showed: the frames of a command, with the time of each."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import bayou

SOURCE = Path(bayou.__file__).resolve().parents[1]
_CONTROL = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+|\x1b")
_POLL_S = 0.05
_READS_S = 1.5


class Terminal:
    """As much of a terminal as a progress line needs: lines, carriage return, cursor up, erase line."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        for part in _CONTROL.finditer(text):
            match part[0], part[2]:
                case "\r", _:
                    self.column = 0
                case "\n", _:
                    self.row, self.column = self.row + 1, 0
                    while self.row >= len(self.lines):
                        self.lines.append("")
                case _, "A":
                    self.row = max(0, self.row - int(part[1] or 1))
                case _, "K":
                    self.lines[self.row] = ""
                case _, None:
                    line = self.lines[self.row].ljust(self.column)
                    self.lines[self.row] = line[: self.column] + part[0] + line[self.column + len(part[0]) :]
                    self.column += len(part[0])

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).strip("\n")


@dataclass
class Recording:
    """What a command showed: each frame that differs from the one before it, and when it came."""

    code: int = -1
    frames: list[tuple[float, str]] = field(default_factory=list)
    seconds: float = 0.0
    late: float = 0.0
    """How much later than planned this process woke up, at worst: the machine is busy, and so is the command."""

    @property
    def text(self) -> str:
        """All that was ever shown."""
        return "\n".join(frame for _, frame in self.frames)

    @property
    def last(self) -> str:
        return self.frames[-1][1]

    def asks_since(self, now: float) -> float:
        """Return for how long a question has been the last that was shown; 0 if there is none."""
        return now - self.frames[-1][0] if self.frames and "[y/N]" in self.last else 0.0

    def longest_still(self) -> float:
        """Return the longest time for which one frame stood, from the first frame to the end of the command."""
        moments = [moment for moment, _ in self.frames] + [self.seconds]
        return max(after - before for before, after in pairwise(moments))


def record(
    *args: str,
    cwd: Path,
    columns: int = 80,
    environ: Mapping[str, str] | None = None,
    interrupt: Callable[[Recording], bool] | None = None,
    answer: str | None = None,
) -> Recording:
    """Run `python -m bayou` at a terminal of its own and record its screen; press Ctrl-C once `interrupt` says so.

    A question is answered late, as by somebody who reads it first.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = os.environ | {"PYTHONPATH": str(SOURCE), "TERM": "xterm", "NO_COLOR": "1"} | dict(environ or {})
    for name in ("COLUMNS", "LINES"):
        env.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "bayou", *args], cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    screen, made = Terminal(), Recording()
    begun = time.monotonic()
    rest = b""
    try:
        while True:
            before = time.monotonic()
            readable = select.select([ours], [], [], _POLL_S)[0]
            made.late = max(made.late, time.monotonic() - before - _POLL_S)
            if interrupt is not None and interrupt(made):
                interrupt = None
                process.send_signal(signal.SIGINT)
            if answer is not None and made.asks_since(time.monotonic() - begun) > _READS_S:
                os.write(ours, answer.encode())
                answer = None
            if not readable:
                continue
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break  # Linux says so when the other end is closed
            if not piece:
                break
            rest += piece
            text = rest.decode(errors="ignore")
            rest = b"" if text.encode() == rest else rest[len(text.encode()) :]
            screen.feed(text)
            if not made.frames or screen.text != made.frames[-1][1]:
                made.frames.append((time.monotonic() - begun, screen.text))
    finally:
        os.close(ours)
        made.seconds = time.monotonic() - begun
        made.code = process.wait(60)
    return made
