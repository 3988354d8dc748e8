"""How a running server is reached: written by who started it, read by who comes next."""

from __future__ import annotations

import json
from typing import ClassVar

from msgspec.structs import asdict

from bayou.core.atomic_file import atomic_file
from bayou.core.structs import SelectiveStruct
from bayou.spark.server.files import ServerFiles


class ServerRecord(SelectiveStruct, frozen=True):
    """One running server. `identity` is what it says of itself when asked."""

    unshown: ClassVar[tuple[str, ...]] = ("token",)

    port: int
    pid: int
    identity: str
    token: str

    @property
    def url(self) -> str:
        return f"sc://localhost:{self.port}"


def read_record(place: ServerFiles) -> ServerRecord | None:
    """Return what the place says, or None if it says nothing that can be used."""
    try:
        found = ServerRecord(**json.loads(place.record.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    kinds = (found.port, int), (found.pid, int), (found.identity, str), (found.token, str)
    return found if all(isinstance(value, kind) for value, kind in kinds) else None


def write_record(place: ServerFiles, record: ServerRecord) -> None:
    """Make it known, at once and whole, to this user alone."""
    with atomic_file(place.record, mode=0o600, temporary=place.record.with_suffix(".new")) as file:
        file.write(json.dumps(asdict(record)).encode())
