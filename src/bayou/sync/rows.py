"""Entries as they are kept in `sync.db`."""

from __future__ import annotations

import json

from bayou.index.entry import Entry


def dump(entry: Entry | None) -> str | None:
    if entry is None:
        return None
    sha256 = entry.sha256.hex() if entry.sha256 is not None else None
    return json.dumps([entry.push, entry.size, sha256, entry.etag, entry.version, entry.modified])


def load(path: str, text: str | None) -> Entry | None:
    if text is None:
        return None
    push, size, sha256, etag, version, modified = json.loads(text)
    return Entry(path, push, size, bytes.fromhex(sha256) if sha256 is not None else None, etag, version, modified)
