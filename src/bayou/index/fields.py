"""How documents of the index are written: compact JSON, and times in UTC with milliseconds."""

from __future__ import annotations

import json


def dump(value: object) -> bytes:
    """Write a document compactly, in the order of its fields."""
    return json.dumps(value, separators=(",", ":")).encode()
