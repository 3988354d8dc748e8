"""Appending to streaming data.

The content is as long as its metadata says. New bytes lie beyond that, invisible, until the metadata is replaced; what
a killed append left there is cut off by the next one.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from bayou.core.errors import BayouError, ContentChanged, ContentDamaged, NotStreaming
from bayou.records.content import Content, chunks
from bayou.records.context import Context
from bayou.records.item import find_item
from bayou.records.metadata import Metadata
from bayou.records.owner import ModelRef
from bayou.records.reading import fetch


def prepare(context: Context, model: ModelRef, name: str, version: int | None) -> Metadata:
    """Return the version to append to, and fetch its content if it is not here: nobody waits for that in a turn."""
    metadata = find_item(context, model, name, version).metadata
    if not metadata.streaming:
        raise NotStreaming(
            f"{metadata.name} of {model.name} is not streaming data: its versions never change",
            hint=f"save a new version with `bayou data put {model.name} {metadata.name}`",
        )
    fetch(context, metadata.place.raw)
    return metadata


def append(context: Context, model: ModelRef, name: str, content: Content, version: int | None) -> Metadata:
    """Add to a version, or (None) the newest, in one's turn: all of `content`, or, if this raises, nothing."""
    metadata = prepare(context, model, name, version)
    raw = metadata.place.raw
    size = metadata.size
    try:
        for chunk in chunks(content):
            context.tree.append(raw, chunk, at=size)
            size += len(chunk)
        # A hash of all of it would mean to read all of it, each time.
        longer = replace(metadata, size=size, sha256=None)
        context.tree.write(metadata.place.metadata, longer.to_bytes())
    except ContentChanged as error:
        raise ContentDamaged(f"cannot append to {raw}: {error.message}", hint=error.hint) from None
    except BaseException:
        with suppress(BayouError):
            context.tree.append(raw, b"", at=metadata.size)
        raise
    context.told([longer])
    return longer
