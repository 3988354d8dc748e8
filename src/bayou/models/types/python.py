"""Python code of others, in a process of its own.

So it can be killed, crash, print and leave things behind without any of that being ours; and a session of its own, on
its own model too, works under the leases that its environment names (F089).

`python/call`: a Python function.

A plain Python class as a type of models: its public methods are the methods, their annotations the arguments.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from bayou.core.errors import BayouError, MethodFailed, TypeInvalid
from bayou.data.layout import check_name
from bayou.data.metadata import parse_keep, parse_lifetime
from bayou.models.definition import check_type
from bayou.models.method_context import MethodContext
from bayou.models.process import Excerpt, Redacted, run_process
from bayou.models.types import python_child
from bayou.models.types.schema import Method, OutputSpec, schema_of

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


def run_python(job: PythonJob, work: MethodContext, *, save_none: bool) -> None:
    """Call it, save what it saved and returned, or raise `MethodFailed` with its traceback."""
    outbox = work.scratch()
    request = outbox / python_child.REQUEST
    request.write_text(json.dumps({**asdict(job), "root": str(work.root), "save_none": save_none}))
    said = Excerpt()
    with work.stream("log", lazily=True, redacted=True) as log:

        def printed(_: str, data: bytes) -> None:
            said.add(data)
            log.write(data)

        with Redacted(work, printed) as redacted:
            ended = run_process(
                # -P: what lies beside our own script is not to be imported; -u: a log is read while it is written.
                [sys.executable, "-P", "-u", python_child.__file__, str(outbox)],
                cwd=work.root,
                environment=work.environment,
                mark=work.output_id,
                timeout=None,
                cancelled=work.cancelled,
                printed=redacted.printed,
                waiting=log.flush_if_due,
            )
    failure = outbox / python_child.FAILURE
    if failure.exists():
        told = json.loads(failure.read_text())
        message = " ".join(work.redact(told["message"]).split()).rstrip(": ")
        raise MethodFailed(message, details=work.redact(told["details"]))
    if ended.why is not None or not (outbox / python_child.DONE).exists():
        last = said.last_line(_LAST_WORDS)
        why = ended.why or "ended before it was done"
        raise MethodFailed(f"the process that called {job.name} {why}{f': {last}' if last else ''}")
    _save(outbox, work)


def _save(outbox: Path, work: MethodContext) -> None:
    manifest = outbox / python_child.ITEMS
    for line in manifest.read_text().splitlines() if manifest.exists() else ():
        said = json.loads(line)
        file = outbox / said.pop("file")
        if said.pop("returned"):
            file = _redacted(file, work)
        with open(file, "rb") as content:
            work.save(said.pop("name"), content, **said)


def _redacted(file: Path, work: MethodContext) -> Path:
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


_NAME = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_ARGUMENTS = {
    "type": "object",
    "properties": {
        "target": {
            "type": "string",
            "pattern": f"^{_NAME}:{_NAME}$",
            "description": "package.module:function; modules of the repo's root can be imported",
        },
        "arguments": {"type": "object", "default": {}, "description": "What the function is called with, by name"},
    },
    "required": ["target"],
    "additionalProperties": False,
}


class PythonCall:
    """Calls a function, in a process of its own. What it returns is `result`; what it prints is `log`."""

    name = "python/call"
    description = "Call a Python function"
    methods: Mapping[str, Method] = {
        "call": Method(
            "call",
            "Call a function, and keep what it returns: bytes and texts as they are, anything else as JSON",
            _ARGUMENTS,
            (OutputSpec("result"), OutputSpec("log", "text/plain", streaming=True)),
            keep_failed=True,
        )
    }

    def run(self, method: str, arguments: Mapping[str, Any], work: MethodContext) -> None:
        module, _, function = arguments["target"].partition(":")
        job = PythonJob("module", module, function, arguments.get("arguments", {}), construct=False)
        run_python(job, work, save_none=True)


RESULT = "result"
_OUTPUT_FIELDS = frozenset(OutputSpec.__struct_fields__)


class Origin(Struct, frozen=True):
    """Where the class is to be had from by the process that runs its methods."""

    kind: Literal["file", "module"]
    place: str
    name: str


class PlainType:
    """A class that says `type = "…"`. Each method runs in a process of its own, on a new object of the class.

    What a method returns is saved as `result`; more with its parameter `work`, if it has one. `outputs` may say how
    data is kept, `keep_failed` that it stays when a method fails.
    """

    def __init__(self, found: type, origin: Origin, source: str) -> None:
        """Look at a class; `TypeInvalid`, naming `source`, if it is no type of models."""
        where = f"{source}: {found.__name__}"
        name = getattr(found, "type", None)
        try:
            self.name = check_type(name if isinstance(name, str) else "")
        except BayouError as error:
            raise TypeInvalid(f"{where}: {error.message}", hint=error.hint) from None
        self.description = _summary(found)
        self.methods: Mapping[str, Method] = {
            name: _method(found, name, function, f"{where}.{name}") for name, function in _functions(found)
        }
        if not self.methods:
            raise TypeInvalid(f"{where} has no methods", hint="write one whose name has no _ in front")
        for name in _declared(found, where):
            if name not in self.methods:
                raise TypeInvalid(f"{where}: outputs names {name}, which is no method", hint="rename one of them")
        self._origin = origin

    def run(self, method: str, arguments: Mapping[str, Any], work: MethodContext) -> None:
        origin = self._origin
        job = PythonJob(origin.kind, origin.place, f"{origin.name}.{method}", arguments, construct=True)
        run_python(job, work, save_none=False)


def _functions(found: type) -> Iterable[tuple[str, Callable[..., object]]]:
    for name, member in inspect.getmembers(found, callable):
        if not name.startswith("_") and inspect.isroutine(member):
            yield name, member


def _method(found: type, name: str, function: Callable[..., object], where: str) -> Method:
    declared = _declared(found, where).get(name, (OutputSpec(RESULT),))
    keep_failed = getattr(found, "keep_failed", False) is True
    return Method(name, _summary(function), schema_of(function, where), declared, keep_failed)


def _declared(found: type, where: str) -> dict[str, tuple[OutputSpec, ...]]:
    """Return what `outputs` says: for each method, the fields of an `OutputSpec` for each item."""
    said = getattr(found, "outputs", {})
    try:
        return {name: tuple(_output(one) for one in items) for name, items in said.items()}
    except BayouError as error:
        raise TypeInvalid(f"{where}: outputs: {error.message}", hint=error.hint) from None
    except (AttributeError, TypeError) as error:
        raise TypeInvalid(
            f"{where}: outputs: {error}", hint='write it as {"method": [{"name": "report", "lifetime": "7d"}]}'
        ) from None


def _output(said: Mapping[str, Any]) -> OutputSpec:
    unknown = set(said) - _OUTPUT_FIELDS
    if unknown:
        raise TypeInvalid(f"unknown key {min(unknown)}", hint=f"known keys: {', '.join(sorted(_OUTPUT_FIELDS))}")
    made = OutputSpec(**said)
    check_name(made.name)
    if made.lifetime is not None:
        parse_lifetime(made.lifetime)
    if made.keep is not None:
        parse_keep(made.keep)
    return made


def _summary(of: object) -> str:
    """Return the first paragraph of a docstring, in one line."""
    text = inspect.cleandoc(getattr(of, "__doc__", None) or "")
    return " ".join(text.partition("\n\n")[0].split())
