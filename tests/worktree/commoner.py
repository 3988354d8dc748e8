"""Somebody for whom permissions count, also when root runs the tests."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NOBODY = 65534


@dataclass(frozen=True)
class Commoner:
    """A user without privileges, and a directory that is his."""

    home: Path

    @classmethod
    def at(cls, home: Path) -> Commoner:
        home.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(home, _NOBODY, _NOBODY)
        return cls(home)

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Be this user inside the block."""
        if os.geteuid() != 0:
            yield
            return
        os.seteuid(_NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)

    def open_up(self) -> None:
        """Make everything removable again."""
        for path, _, _ in os.walk(self.home):
            os.chmod(path, 0o755)
            for name in os.listdir(path):
                inner = Path(path, name)
                if inner.is_dir() and not inner.is_symlink():
                    inner.chmod(0o755)
