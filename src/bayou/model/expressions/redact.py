"""Keeping what came from the environment out of what is stored."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from bayou.core.redaction import REDACTED, redactor

__all__ = ["REDACTED", "redact"]


def redact(value: Any, secrets: Collection[str]) -> Any:
    """Return a value in which every secret, in whatever form a text contains it, is replaced.

    So are the credentials of this process, and private keys. Redact a whole text, before it is collapsed or cut.
    """
    return redactor(secrets).value(value)
