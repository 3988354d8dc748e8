"""The record of a running server (`server.json`), which the starting command writes and later commands read."""

from __future__ import annotations

import json
from typing import ClassVar

from msgspec.structs import asdict

from bayou.core.atomic_file import atomic_file
from bayou.core.structs import SelectiveStruct
from bayou.spark.server.files import ServerFiles


class ServerRecord(SelectiveStruct, frozen=True):
    """How to reach a running server. A client compares `identity` with what the server itself reports (`IDENTITY`)."""

    unshown: ClassVar[tuple[str, ...]] = ("token",)

    port: int
    pid: int
    identity: str
    token: str

    @property
    def url(self) -> str:
        return f"sc://localhost:{self.port}"


def read_record(files: ServerFiles) -> ServerRecord | None:
    """Return the record of a server; None if there is none, or if it is not well-formed."""
    try:
        found = ServerRecord(**json.loads(files.record.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    kinds = (found.port, int), (found.pid, int), (found.identity, str), (found.token, str)
    return found if all(isinstance(value, kind) for value, kind in kinds) else None


def write_record(files: ServerFiles, record: ServerRecord) -> None:
    """Write the record atomically, readable for this user alone."""
    with atomic_file(files.record, mode=0o600, temporary=files.record.with_suffix(".new")) as file:
        file.write(json.dumps(asdict(record)).encode())
