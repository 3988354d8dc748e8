"""What an expression sees of content, and what comes out of one, as JSON has it."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from bayou.core import limits
from bayou.core.errors import RecordError
from bayou.records.query.times import as_record


def content_of(data: bytes) -> Mapping[str, Any]:
    """Return the content, as text if it is text, and the JSON object that it is, if it is one."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"content": data, "attributes": {}}
    return {"content": text, "attributes": _attributes(text)}


def check_size(size: int) -> None:
    """Raise `RecordError` if content is too large for an expression to ask for."""
    if size > limits.CONTENT_BYTES:
        raise RecordError(f"its content has {size} bytes, more than an expression can ask for")


def _attributes(text: str) -> dict[str, Any]:
    if len(text) > limits.ATTRIBUTES_BYTES or not text.lstrip().startswith("{"):
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def as_json(value: Any, order: Mapping[str, int] | None = None) -> Any:
    """Return a value as JSON can tell it: times as records have them, durations in seconds, bytes in base 64.

    A map of CEL has its keys in an order that is another one in every process. Here they come as `order` ranks them,
    the others after those, by their names.
    """
    match value:
        case datetime():
            return as_record(value) or value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return base64.b64encode(value).decode()
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            told = {str(key): as_json(one, order) for key, one in value.items()}
            rank = order or {}
            return dict(sorted(told.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0])))
        case list() | tuple():
            return [as_json(one, order) for one in value]
        case None | bool() | int() | str():
            return value
        case _:  # an optional value
            return as_json(value.value(), order) if value.has_value() else None
