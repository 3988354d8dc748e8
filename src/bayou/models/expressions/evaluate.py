"""Evaluating the expressions in a value, and redacting what came from the environment.

`evaluate` replaces every expression by its value, and returns the values of the environment that it used: they are
secrets, and `redact` removes them from what is stored (V26). `DataLookup` answers `data.latest` and the like.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bayou.core import limits
from bayou.core.documents import read_at_most
from bayou.core.errors import BayouError, ExpressionInvalid, QueryInvalid
from bayou.core.redaction import REDACTED, redactor
from bayou.core.text import count
from bayou.data.query.expression import check_size
from bayou.models.expressions.check import Where, compiled, keys_used
from bayou.models.expressions.scan import Code, EvaluationScope, Path, parse
from bayou.models.find import resolve_model

if TYPE_CHECKING:
    from bayou.data.items import Item
    from bayou.data.records import Records
    from bayou.state.connection import Connection

__all__ = ["REDACTED", "redact"]

_SHOWN = ("name", "version", "size", "sha256", "content_type", "created_at")


class EvaluatedValue(Struct, frozen=True):
    """A value without expressions, and the values of the environment that they used."""

    value: Any
    secrets: frozenset[str]


def evaluate(value: object, scope: EvaluationScope, where: Where) -> EvaluatedValue:
    """Evaluate every expression in a value; `ExpressionInvalid` names the place of the first that fails.

    A text that consists of one expression becomes the expression's value, of any type; in a longer text every
    expression becomes text.
    """
    secrets: set[str] = set()
    return EvaluatedValue(_evaluate(value, (), scope, where, secrets), frozenset(secrets))


def redact(value: Any, secrets: Collection[str]) -> Any:
    """Return a value in which every secret, in whatever form a text contains it, is replaced.

    So are the credentials of this process, and private keys. Redact a whole text, before it is collapsed or shortened.
    """
    return redactor(secrets).value(value)


class DataLookup:
    """Answers `data.latest`, `data.version` and `data.query`. Opens the records when they are first needed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._records: Records | None = None
        self._open = ExitStack()

    def version(self, model: str, name: str, number: int | None, *, content: bool) -> dict[str, Any]:
        """Return a version, or (None) the newest; its content is read only if `content` is set."""
        records = self._opened()
        item = records.data.get(resolve_model(records.repo, model, records), name, number)
        return view(records, item, content=content)

    def query(self, predicate: str) -> list[Any]:
        """Return the versions for which a predicate is true, as `bayou data query` does; no evaluation may fail."""
        from bayou.data.query import query  # noqa: PLC0415

        records = self._opened()
        records.catalog.refresh()
        found = query(records, predicate)
        if found.failed:
            raise QueryInvalid(
                f"{count(len(found.failed), 'version')} cannot be evaluated: {found.failed[0]}",
                hint="ask first for what only the others have, as name == ... && attributes.x > 1",
            )
        return found.results

    def _opened(self) -> Records:
        if self._records is None:
            from bayou.data.records import Records  # noqa: PLC0415  (most expressions use no data)

            self._records = self._open.enter_context(Records(self._connection.repo, connection=self._connection))
        return self._records

    def __enter__(self) -> DataLookup:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def view(records: Records, item: Item, *, content: bool) -> dict[str, Any]:
    """Return a version as expressions see it. `content` is its text, null if it is binary; `attributes` its JSON."""
    found = item.metadata
    shown: dict[str, Any] = {name: getattr(found, name) for name in _SHOWN}
    shown |= {"model": found.owner.model, "tags": dict(found.tags)}
    if content:
        check_size(found)
        with records.data.open(item) as file:
            shown |= _content(read_at_most(file, limits.CONTENT_BYTES))
    return shown


def _content(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"content": None, "attributes": {}}
    try:
        found = json.loads(text) if len(text) <= limits.ATTRIBUTES_BYTES else {}
    except (ValueError, RecursionError):
        found = {}
    return {"content": text, "attributes": found}


def _evaluate(value: object, path: Path, scope: EvaluationScope, where: Where, secrets: set[str]) -> Any:
    match value:
        case str():
            return _text(value, scope, where(path), secrets) if "${{" in value else value
        case Mapping():
            return {key: _evaluate(element, (*path, key), scope, where, secrets) for key, element in value.items()}
        case list() | tuple():
            return [_evaluate(element, (*path, at), scope, where, secrets) for at, element in enumerate(value)]
    return value


def _text(text: str, scope: EvaluationScope, where: str, secrets: set[str]) -> Any:
    template = parse(text, where)
    if len(template) == 1 and isinstance(template[0], Code):
        return _value(template[0].source, scope, where, secrets)
    joined = ""
    for part in template:
        joined += _joined(part, scope, where, secrets) if isinstance(part, Code) else part
    return joined


def _joined(part: Code, scope: EvaluationScope, where: str, secrets: set[str]) -> str:
    value = _value(part.source, scope, where, secrets)
    if value is None:
        # An empty text would be a guess, and dangerous in `rm -r /${{ … }}`.
        raise ExpressionInvalid(
            f"{where}: {part.source} evaluates to null in the middle of a text",
            hint="say what null means: x == null ? …",
        )
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _value(source: str, scope: EvaluationScope, where: str, secrets: set[str]) -> Any:
    from bayou.data.query.evaluator import FAILURES  # noqa: PLC0415
    from bayou.data.query.expression import as_json  # noqa: PLC0415

    program = compiled(source, where, scope.names)
    secrets.update(_secrets(source, scope))
    functions = _DataFunctions(scope.data, source)
    names: dict[str, Any] = {"inputs": scope.inputs, "env": scope.env, "run": scope.run, "steps": scope.steps}
    values = {name: value for name, value in {**names, **scope.more}.items() if name in program.variables()}
    try:
        found = as_json(program.execute({**values, "data": {}}, functions.by_name()))
    except FAILURES as error:
        if functions.failure is None:
            raise _failed(where, source, error, secrets) from None
    if functions.failure is not None:
        message, hint = redact([functions.failure.message, functions.failure.hint], secrets)
        raise ExpressionInvalid(f"{where}: {source}: {message}", hint=hint)
    return found


def _secrets(source: str, scope: EvaluationScope) -> set[str]:
    """Return the values of the environment that an expression uses; all, if it computes a name."""
    used = keys_used("env", source)
    names = scope.env.keys() if used is None else used
    return {scope.env[name] for name in names if scope.env.get(name)}


class _DataFunctions:
    """The functions of `data`. `failure` keeps an error of theirs: CEL would print it, and raise only a part."""

    def __init__(self, data: DataLookup | None, source: str) -> None:
        self._data = data
        self._content = "content" in source or "attributes" in source
        self.failure: BayouError | None = None

    def by_name(self) -> dict[str, Any]:
        return {"latest": self._latest, "version": self._version, "query": self._query}

    def _latest(self, _: object, *arguments: Any) -> Any:
        return self._call("latest", ("model", "name"), arguments)

    def _version(self, _: object, *arguments: Any) -> Any:
        return self._call("version", ("model", "name", "number"), arguments)

    def _query(self, _: object, *arguments: Any) -> Any:
        return self._call("query", ("predicate",), arguments)

    def _call(self, function: str, takes: tuple[str, ...], given: tuple[Any, ...]) -> Any:
        try:
            kinds = tuple(int if name == "number" else str for name in takes)
            if tuple(map(type, given)) != kinds:
                raise ExpressionInvalid(f"data.{function} takes {', '.join(takes)}")
            if self._data is None:
                raise ExpressionInvalid("there is no data to be asked for here")
            if function == "query":
                return self._data.query(given[0])
            number = given[2] if function == "version" else None
            return self._data.version(given[0], given[1], number, content=self._content)
        except BayouError as error:
            self.failure = self.failure or error
            return None


def _failed(where: str, source: str, error: Exception, secrets: set[str]) -> ExpressionInvalid:
    if isinstance(error, KeyError):
        return ExpressionInvalid(
            f"{where}: {source}: there is no {redact(str(error.args[0]), secrets)}",
            hint="give it, or ask with has(…) whether it is there",
        )
    reason = " ".join(redact(str(error), secrets).partition(". ")[0].split())
    return ExpressionInvalid(f"{where}: {source} has no value: {reason}", hint="correct the expression")
