"""Real processes that work on a clone, and die on cue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import bayou

_PRELUDE = """
import os, signal, sys

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def after(owner, name, count=1):
    '''Die when the named function has returned for the `count`-th time.'''
    real, left = getattr(owner, name), [count]
    def called(*args, **kwargs):
        result = real(*args, **kwargs)
        left[0] -= 1
        if left[0] == 0:
            die()
        return result
    setattr(owner, name, called)
"""


def start(body: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a Python process that runs `body`; `die` and `after` end it as a power cut would."""
    return subprocess.Popen(
        [sys.executable, "-c", _PRELUDE + body, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(Path(bayou.__path__[0]).parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(body: str, *arguments: object) -> None:
    """Run a process that must end well."""
    output(body, *arguments)


def output(body: str, *arguments: object) -> str:
    """Run a process that must end well, and return what it prints."""
    process = start(body, *arguments)
    printed, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()
    return printed.decode()


def run_to_death(body: str, *arguments: object) -> bool:
    """Run a process that kills itself on its way; return whether it got that far (else it must end well)."""
    process = start(body, *arguments)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    return process.returncode != 0
