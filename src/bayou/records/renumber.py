"""The rule by which a version gets another number (section 5 of the design); light, since every sync loads it."""

from __future__ import annotations

import re

from bayou.core import limits

_VERSION = re.compile(rb"^version: *[1-9][0-9]* *\r?$", re.MULTILINE)


def renumber(metadata: bytes, version: int) -> bytes | None:
    """Return the metadata of a version under another number; None if it does not say its number in one line.

    None too for a number that no version has (V25).
    """
    if version > limits.VERSION_MAX:
        return None
    renumbered, found = _VERSION.subn(b"version: %d" % version, metadata)
    return renumbered if found == 1 else None
