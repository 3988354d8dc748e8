"""Short ways to use the transport of a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayou.objectstore.backends.directory import LocalTransport

TIMEOUT = 10.0


def listed(transport: LocalTransport, prefix: str = "", after: str | None = None) -> list[str]:
    return [meta.key for page in transport.list(prefix, after=after, timeout=TIMEOUT) for meta in page]


def content(transport: LocalTransport, key: str) -> bytes:
    found = transport.get(key, timeout=TIMEOUT)
    assert found is not None
    return bytes(found.data)


def put(transport: LocalTransport, key: str, data: bytes = b"x", **how: Any) -> str:
    stored = transport.put(key, data, timeout=TIMEOUT, **how)
    assert stored.etag is not None
    return stored.etag


def temporaries(root: Path) -> list[Path]:
    return [path for path in root.rglob(".bayou-*.tmp") if path.is_file()]
