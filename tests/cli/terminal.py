"""A terminal, and somebody who types."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import bayou

SOURCE = Path(bayou.__file__).resolve().parents[1]


def at_terminal(answer: str, *args: str) -> tuple[int, str]:
    """Run a command in a process whose three streams are a terminal, on which somebody types."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "bayou", *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "TERM": "dumb"},
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:
        pass  # Linux says so when the other end is closed
    finally:
        os.close(ours)
    return process.wait(60), shown.decode()
