"""The child process that calls foreign Python code (see `python`). It is a script that imports nothing of Bayou.

It finds a request in the directory that it is given, and leaves there the saved items, and how it ended.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

REQUEST, ITEMS, FAILURE, DONE = "request.json", "items.jsonl", "failure.json", "done"
_RESULT = "result"
_BAYOU = Path(__file__).parents[2]
_FRAMES = 50
_HEADING = "Traceback (most recent call last):\n"


class Work:
    """The object that a method with a parameter `work` gets."""

    def __init__(self, outbox: Path, root: Path) -> None:
        self._outbox = outbox
        self._count = 0
        self.root = root
        """The repo."""

    def save(
        self,
        name: str,
        content: Any,
        *,
        content_type: str | None = None,
        tags: dict[str, str] | None = None,
        lifetime: str | None = None,
        keep: str | None = None,
    ) -> None:
        """Save data: bytes, a text, an open binary file, or a value that JSON has."""
        options = {"content_type": content_type, "tags": tags or {}, "lifetime": lifetime, "keep": keep}
        self._add(name, content, options, returned=False)

    def _add(self, name: str, content: Any, options: dict[str, Any], *, returned: bool) -> None:
        self._count += 1
        file = self._outbox / f"item-{self._count}"
        guessed = _write(file, content)
        fields = {**options, "content_type": options.get("content_type") or guessed, "returned": returned}
        with open(self._outbox / ITEMS, "a") as items:
            items.write(json.dumps({"file": file.name, "name": name, **fields}) + "\n")


def _write(file: Path, content: Any) -> str | None:
    """Write content to a file; return its content type, if that is known."""
    if isinstance(content, bytes | bytearray | memoryview):
        file.write_bytes(content)
        return None
    if isinstance(content, str):
        file.write_bytes(content.encode())
        return "text/plain"
    if hasattr(content, "read"):
        _copy(content, file)
        return None
    try:
        text = json.dumps(content, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        kind = type(content).__name__
        raise TypeError(f"{kind} is neither bytes nor a text, nor what JSON can tell: {error}") from None
    file.write_bytes(text.encode(errors="backslashreplace"))
    return "application/json"


def _copy(content: BinaryIO, file: Path) -> None:
    with open(file, "wb") as target:
        shutil.copyfileobj(content, target)


def _find(request: dict[str, Any]) -> Any:
    """Import the function of a request; a method is bound to a new object of its class."""
    if request["kind"] == "module":
        found: Any = importlib.import_module(request["place"])
    else:
        spec = importlib.util.spec_from_file_location("bayou_extension", request["place"])
        if spec is None or spec.loader is None:
            raise ImportError(f"not a Python file: {request['place']}")
        found = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = found
        spec.loader.exec_module(found)
    *outer, name = request["name"].split(".")
    for part in outer:
        found = getattr(found, part)
    return getattr(found() if request["construct"] else found, name)


def _call(request: dict[str, Any], work: Work) -> None:
    function = _find(request)
    arguments = dict(request["arguments"])
    if request["construct"] and "work" in inspect.signature(function).parameters:
        arguments["work"] = work
    returned = function(**arguments)
    if returned is not None or request["save_none"]:
        work._add(_RESULT, returned, {}, returned=True)


def place_of(error: BaseException, root: Path) -> str | None:
    """Return the file and line at which foreign code failed: the innermost frame below `root`, else the innermost."""
    frames = _theirs(traceback.extract_tb(error.__traceback__))
    if isinstance(error, SyntaxError) and error.filename is not None:
        frames.append(traceback.FrameSummary(error.filename, error.lineno, "<module>", lookup_line=False))
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(root)]
    if not frames:
        return None
    frame = (inside or frames)[-1]
    file = Path(frame.filename).relative_to(root) if inside else frame.filename
    function = "" if frame.name.startswith("<") else f", in {frame.name}"
    return f"{file}, line {frame.lineno}{function}"


def details_of(error: BaseException) -> str:
    """Return the traceback of an exception, and of those that led to it, without the frames of Bayou."""
    trace = traceback.TracebackException.from_exception(error, limit=-_FRAMES)
    waiting: list[traceback.TracebackException | None] = [trace]
    while waiting:
        found = waiting.pop()
        if found is not None:
            found.stack[:] = _theirs(found.stack)
            waiting += [found.__cause__, found.__context__, *(getattr(found, "exceptions", None) or ())]
    # An exception without frames of its own is one line.
    lines = [line for line in trace.format() if trace.stack or line != _HEADING]
    return "".join(lines)


def _theirs(frames: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    return [
        frame
        for frame in frames
        if not Path(frame.filename).is_relative_to(_BAYOU) and "<frozen importlib" not in frame.filename
    ]


def main(outbox: Path) -> int:
    """Run the request in a directory, and leave there how it ended; return the exit code."""
    request = json.loads((outbox / REQUEST).read_text())
    sys.path.insert(0, request["root"])
    sys.argv = [request["place"]]
    try:
        _call(request, Work(outbox, Path(request["root"])))
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  (every exception is reported)
        # Unchanged: the parent finds secrets only in whole texts, before they are shortened (V26).
        where = place_of(error, Path(request["root"]))
        failure = {"message": f"{type(error).__name__}: {error}", "where": where, "details": details_of(error)}
        (outbox / FAILURE).write_text(json.dumps(failure))
        return 1
    (outbox / DONE).touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
