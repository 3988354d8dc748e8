"""What an item may be called: anything that has one safe place in every tree and every store (V18, V21).

All digits, dots, spaces and letters of any script are fine. What is not is refused here, with the reason, before
anything is written (F106): a name is never accepted and then passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from bayou.core import paths
from bayou.core.errors import NameRefused
from bayou.records.layout import DELETED, EVALUATED, METADATA, item_directory
from bayou.records.owner import ModelRef

_LONGEST_NUMBER = "9" * 12
_LONGEST_TAG = 255


def check_name(name: str) -> str:
    """Return an item's name, or raise `NameRefused` with the reason."""
    why = "a slash" if "/" in name else paths.unsafe(name) or paths.reserved_name(name)
    if why is not None:
        raise NameRefused(f"data cannot be called {_shown(name)}: {_said(why, name)}", hint="choose another name")
    return name


def check_place(model: ModelRef, name: str) -> str:
    """Return the directory of an item, or raise `NameRefused` if its name, or all of its path, has no safe place."""
    directory = item_directory(model.type, model.id, check_name(name))
    why = paths.refusal(f"{directory}/{_LONGEST_NUMBER}/{METADATA}")
    if why is not None:
        raise NameRefused(
            f"data of {model.type} cannot be called {_shown(name)}: {why} with its type and model",
            hint="choose a shorter name",
        )
    return directory


def check_id(text: str, what: str) -> str:
    """Return an id that names a file or a directory of its own, or raise `NameRefused`. `what` says whose id it is."""
    why = "a slash" if "/" in text else paths.unsafe(text) or paths.unsafe(f"{text}.yaml") or paths.reserved_name(text)
    if why is None and text in (DELETED, EVALUATED):
        why = "a file of that name means something else"
    if why is not None:
        raise NameRefused(f"{what} cannot have the id {_shown(text)}: {_said(why, text)}", hint="use a UUID")
    return text


def check_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags as they are kept, or raise `NameRefused`."""
    for key, value in tags.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise NameRefused(f"a tag is a text with a text, not {key!r} with {value!r}", hint="write it as key=value")
        if not key or len(key) > _LONGEST_TAG:
            raise NameRefused(f"a tag's key has 1 to {_LONGEST_TAG} characters", hint="choose a shorter one")
    return dict(tags)


def _said(why: str, name: str) -> str:
    return "it is empty" if not name else why


def _shown(name: str) -> str:
    """Quote a name so that it fits on a line, whatever is in it."""
    text = json.dumps(name, ensure_ascii=not name.isprintable())
    return text if len(text) <= 80 else f'{text[:60]}…"'
