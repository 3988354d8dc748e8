"""Keeping what came from the environment out of what is stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

REDACTED = "***"


def redact(value: Any, secrets: Collection[str]) -> Any:
    """Return a value in which every secret, wherever a text contains it, is replaced.

    A number that reads like a secret is one that was made of it.
    """
    hidden = sorted((secret for secret in secrets if secret), key=len, reverse=True)  # one may contain another
    return _redact(value, hidden) if hidden else value


def _redact(value: Any, hidden: list[str]) -> Any:
    match value:
        case str():
            for secret in hidden:
                value = value.replace(secret, REDACTED)
            return value
        case Mapping():
            return {_redact(key, hidden): _redact(one, hidden) for key, one in value.items()}
        case list() | tuple():
            return [_redact(one, hidden) for one in value]
        case bool() | None:
            return value
    return REDACTED if str(value) in hidden else value
