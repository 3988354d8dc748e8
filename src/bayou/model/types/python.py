"""Python code of others, in a process of its own.

So it can be killed, crash, print and leave things behind without any of that being ours; and a session of its own, on
its own model too, works under the leases that its environment names (F089).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from bayou.core.errors import MethodFailed
from bayou.model.process import Excerpt, run_process
from bayou.model.types import child
from bayou.model.types.printed import Redacted
from bayou.model.work import Work

_LAST_WORDS = 200
_CHUNK = 1 << 16
_LOOK = 8 << 10
"""Where a NUL says that it is no text, as Git does it."""


class PythonJob(Struct, frozen=True):
    """What to call: the dotted `name` in a module, by its name or its file. `construct`: it is a method of a class."""

    kind: Literal["file", "module"]
    place: str
    name: str
    arguments: Mapping[str, Any]
    construct: bool


def run_python(job: PythonJob, work: Work, *, save_none: bool) -> None:
    """Call it, save what it saved and returned, or raise `MethodFailed` with its traceback."""
    outbox = work.scratch()
    request = outbox / child.REQUEST
    request.write_text(json.dumps({**asdict(job), "root": str(work.root), "save_none": save_none}))
    said = Excerpt()
    with work.stream("log", lazily=True, redacted=True) as log:

        def printed(_: str, data: bytes) -> None:
            said.add(data)
            log.write(data)

        with Redacted(work, printed) as redacted:
            ended = run_process(
                # -P: what lies beside our own script is not to be imported; -u: a log is read while it is written.
                [sys.executable, "-P", "-u", child.__file__, str(outbox)],
                cwd=work.root,
                environment=work.environment,
                mark=work.output_id,
                timeout=None,
                cancelled=work.cancelled,
                printed=redacted.printed,
                waiting=log.flush_if_due,
            )
    failure = outbox / child.FAILURE
    if failure.exists():
        told = json.loads(failure.read_text())
        message = " ".join(work.redact(told["message"]).split()).rstrip(": ")
        raise MethodFailed(message, details=work.redact(told["details"]))
    if ended.why is not None or not (outbox / child.DONE).exists():
        last = said.last_line(_LAST_WORDS)
        why = ended.why or "ended before it was done"
        raise MethodFailed(f"the process that called {job.name} {why}{f': {last}' if last else ''}")
    _save(outbox, work)


def _save(outbox: Path, work: Work) -> None:
    manifest = outbox / child.ITEMS
    for line in manifest.read_text().splitlines() if manifest.exists() else ():
        said = json.loads(line)
        file = outbox / said.pop("file")
        if said.pop("returned"):
            file = _redacted(file, work)
        with open(file, "rb") as content:
            work.save(said.pop("name"), content, **said)


def _redacted(file: Path, work: Work) -> Path:
    """Return a file with what a method returned, without secrets; the same one, if it is no text.

    What it returns is often all that it knows; what it saves by name is chosen, and kept as it is.
    """
    redacted = file.with_name(f"{file.name}-redacted")
    stream = work.redacting()
    with open(file, "rb") as content, open(redacted, "wb") as target:
        if b"\0" in content.read(_LOOK):
            return file
        content.seek(0)
        while data := content.read(_CHUNK):
            target.write(stream.add(data))
        target.write(stream.close())
    return redacted
