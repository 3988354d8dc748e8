"""What types and models may be called: names that are safe as directories here and as keys in every store (V21)."""

from __future__ import annotations

import re

from bayou.core import paths
from bayou.core.errors import ModelInvalid

FOLDER = "models"
SUFFIX = ".yaml"

_SEGMENT = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_TYPE = re.compile(rf"@?{_SEGMENT}(?:/{_SEGMENT})*", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_MAX_TYPE = 200
"""A path has 800 bytes: this leaves room for the longest name of an item, and what lies above and below it."""


def check_type(text: str) -> str:
    """Return a type, `network`, `aws/ec2/vpc` or `@team/report`, or raise `ModelInvalid` with the reason."""
    if len(text) > _MAX_TYPE:
        raise ModelInvalid(f"a type has at most {_MAX_TYPE} characters", hint="choose a shorter one")
    if not _TYPE.fullmatch(text):
        raise ModelInvalid(
            f"{text!r} is no type of models",
            hint="words of letters, digits, dots, - and _ with slashes between them, like aws/ec2 or @team/report",
        )
    for segment in text.split("/"):
        _check_reserved(segment, "a type")
    return text


def check_name(text: str) -> str:
    """Return a model's name, or raise `ModelInvalid` with the reason. Any letters, also spaces and dots inside."""
    why = paths.unsafe(text)
    if why is None and "/" in text:
        why = "a slash"
    if why is None and len(f"{text}{SUFFIX}".encode()) > paths.MAX_SEGMENT_BYTES:
        why = f"longer than {paths.MAX_SEGMENT_BYTES - len(SUFFIX)} bytes"
    if why is None and text != text.strip():
        why = "a space at its edge"
    if why is None and text.startswith("."):
        why = "a dot at its beginning"
    if why is not None:
        raise ModelInvalid(f"a model cannot be called {text!r}: {why}", hint="choose another name")
    _check_reserved(text, "a model")
    return text


def is_id(text: str) -> bool:
    """Say whether a text has the form of a model's id."""
    return _UUID.fullmatch(text) is not None


def _check_reserved(segment: str, what: str) -> None:
    why = paths.reserved_name(segment)
    if why is not None:
        raise ModelInvalid(f"{what} cannot be called {segment!r}: {why}", hint="choose another name")
