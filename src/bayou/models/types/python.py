"""Python code as methods: `python/call`, which calls a function, and plain classes as types (`PlainType`).

The code runs in a child process (`python_child`): it can be killed, crash, print, and leave threads behind without harm
to this process. A session that the code opens, even on its own model, works under the leases that its environment names
(F089).
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
from bayou.core.text import nearest
from bayou.data.layout import check_name
from bayou.data.metadata import parse_keep, parse_lifetime
from bayou.models.definition import check_type
from bayou.models.method_context import MethodContext
from bayou.models.process import Excerpt, RedactingForwarder, run_process
from bayou.models.types import python_child
from bayou.models.types.schema import Method, OutputSpec, schema_of

_LAST_LINE = 200
_CHUNK = 1 << 16
_SNIFF_BYTES = 8 << 10
"""A NUL in so many first bytes means that a file is binary, as in Git."""

RESULT = "result"
_NAMES_OF_TYPES = ("name", "kind")
_OUTPUT_FIELDS = frozenset(OutputSpec.__struct_fields__)
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
    """Calls a function, in a child process. Its return value is saved as `result`, its output as `log`."""

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


class Origin(Struct, frozen=True):
    """Where the child process imports a class from: a module or a file, and the name of the class in it."""

    kind: Literal["file", "module"]
    place: str
    name: str


class PlainType:
    """A class that has `type = "…"`, as a type of models. Its public methods are the type's methods.

    Each method runs in a child process, on a new object of the class. Its return value is saved as `result`; with a
    parameter `work` it can save more. `outputs` may declare the items, `keep_failed` that data of a failed method
    stays.
    """

    def __init__(self, found: type, origin: Origin, source: str) -> None:
        """Check a class; `TypeInvalid`, naming `source`, if it is no type of models."""
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


class PythonJob(Struct, frozen=True):
    """A call: of the dotted `name` in a module or file, `place`. `construct`: it is a method of a class."""

    kind: Literal["file", "module"]
    place: str
    name: str
    arguments: Mapping[str, Any]
    construct: bool


def run_python(job: PythonJob, work: MethodContext, *, save_none: bool) -> None:
    """Run a job in a child process, and save what it saved and returned; or raise `MethodFailed` with its traceback.

    The traceback is the end of the log, too.
    """
    outbox = work.scratch()
    request = outbox / python_child.REQUEST
    request.write_text(json.dumps({**asdict(job), "root": str(work.root), "save_none": save_none}))
    excerpt = Excerpt()
    with work.log(redacted=True) as log:

        def printed(_: str, data: bytes) -> None:
            excerpt.add(data)
            log.write(data)

        with RedactingForwarder(work, printed) as redacted:
            ended = run_process(
                # -P: modules beside our script must not be imported; -u: a log is read while it is written.
                [sys.executable, "-P", "-u", python_child.__file__, str(outbox)],
                cwd=work.root,
                environment=work.environment,
                mark=work.output_id,
                timeout=None,
                cancelled=work.cancelled,
                printed=redacted.printed,
                waiting=log.flush_if_due,
            )
        failure = _failure(outbox, work)
        if failure is not None:
            log.write((failure.details or "").encode(errors="backslashreplace"))
    if failure is not None:
        raise failure
    if ended.why is not None or not (outbox / python_child.DONE).exists():
        last = excerpt.last_line(_LAST_LINE)
        why = ended.why or "ended before it was done"
        raise MethodFailed(f"the process that called {job.name} {why}{f': {last}' if last else ''}")
    _save(outbox, work)


def _failure(outbox: Path, work: MethodContext) -> MethodFailed | None:
    """Return the exception that ended the child's call, redacted, with the file and line of the caller's own code."""
    file = outbox / python_child.FAILURE
    if not file.exists():
        return None
    report = json.loads(file.read_text())
    message = " ".join(work.redact(report["message"]).split()).rstrip(": ")
    where = f" ({work.redact(report['where'])})" if report["where"] else ""
    return MethodFailed(f"{message}{where}", details=work.redact(report["details"]))


def _save(outbox: Path, work: MethodContext) -> None:
    manifest = outbox / python_child.ITEMS
    for line in manifest.read_text().splitlines() if manifest.exists() else ():
        fields = json.loads(line)
        file = outbox / fields.pop("file")
        if fields.pop("returned"):
            file = _redacted(file, work)
        with open(file, "rb") as content:
            work.save(fields.pop("name"), content, **fields)


def _redacted(file: Path, work: MethodContext) -> Path:
    """Return a redacted copy of a file with a returned value; the same file if it is binary.

    A returned value often has everything that a method knows; what a method saves by name is its own choice, and is
    saved unchanged.
    """
    redacted = file.with_name(f"{file.name}-redacted")
    stream = work.redacting()
    with open(file, "rb") as content, open(redacted, "wb") as target:
        if b"\0" in content.read(_SNIFF_BYTES):
            return file
        content.seek(0)
        while data := content.read(_CHUNK):
            target.write(stream.add(data))
        target.write(stream.close())
    return redacted


def _functions(found: type) -> Iterable[tuple[str, Callable[..., object]]]:
    for name, member in inspect.getmembers(found, callable):
        if not name.startswith("_") and inspect.isroutine(member):
            yield name, member


def misnamed_type(found: type) -> str | None:
    """Return the attribute of a class without `type` that seems to be meant as one; None for a mere helper."""
    texts = {name: value for name, value in vars(found).items() if type(value) is str and _is_type(value)}
    by_value = (name for name in _NAMES_OF_TYPES if "/" in texts.get(name, ""))
    meant = nearest("type", texts) or next(by_value, None)
    helps = found.__name__.startswith("_") or meant is None or not any(_functions(found))
    return None if helps else meant


def _is_type(text: str) -> bool:
    try:
        check_type(text)
    except BayouError:
        return False
    return True


def _method(found: type, name: str, function: Callable[..., object], where: str) -> Method:
    declared = _declared(found, where).get(name, (OutputSpec(RESULT),))
    keep_failed = getattr(found, "keep_failed", False) is True
    return Method(name, _summary(function), schema_of(function, where), declared, keep_failed)


def _declared(found: type, where: str) -> dict[str, tuple[OutputSpec, ...]]:
    """Return the class's `outputs`: for each method, an `OutputSpec` for each item."""
    fields = getattr(found, "outputs", {})
    try:
        return {name: tuple(_output(item) for item in items) for name, items in fields.items()}
    except BayouError as error:
        raise TypeInvalid(f"{where}: outputs: {error.message}", hint=error.hint) from None
    except (AttributeError, TypeError) as error:
        raise TypeInvalid(
            f"{where}: outputs: {error}", hint='write it as {"method": [{"name": "report", "lifetime": "7d"}]}'
        ) from None


def _output(fields: Mapping[str, Any]) -> OutputSpec:
    unknown = set(fields) - _OUTPUT_FIELDS
    if unknown:
        raise TypeInvalid(f"unknown key {min(unknown)}", hint=f"known keys: {', '.join(sorted(_OUTPUT_FIELDS))}")
    output = OutputSpec(**fields)
    check_name(output.name)
    if output.lifetime is not None:
        parse_lifetime(output.lifetime)
    if output.keep is not None:
        parse_keep(output.keep)
    return output


def _summary(of: object) -> str:
    """Return the first paragraph of a docstring, in one line."""
    text = inspect.cleandoc(getattr(of, "__doc__", None) or "")
    return " ".join(text.partition("\n\n")[0].split())
