"""Read JSON and YAML that another program or person wrote, within limits on bytes, depth and values (V25).

`read_json` and `read_yaml` return values; `parse_source` also returns the line of each value of a YAML file, for error
messages. All readers check the limits before they build anything and raise only `Unreadable`, whatever the bytes are;
its text is one line, and the caller turns it into its own error, which names the object or the file.

This module uses only the scanner and the parser of libyaml, which keep their state on the heap and yield one event
after the other. libyaml's composer recurses for every level of nesting and overflows the C stack; PyYAML's constructors
take quadratic time for some numbers and accept tags that no record has. So this module composes and constructs itself.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

from msgspec import Struct

from bayou.core import limits

if TYPE_CHECKING:
    from yaml.nodes import Node, ScalarNode


_CHUNK = 1 << 20
_SHOWN = 60
_TAG_DIRECTIVE = re.compile("(?:^|[\n\r\x85\u2028\u2029\ufeff])%TAG")
_CORE = "tag:yaml.org,2002:"
_TAGS = {
    "scalar": frozenset(f"{_CORE}{name}" for name in ("null", "bool", "int", "float", "str", "timestamp", "merge")),
    "sequence": frozenset({f"{_CORE}seq"}),
    "mapping": frozenset({f"{_CORE}map"}),
}
_MERGE = f"{_CORE}merge"
_BOOLS = {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False}
_KINDS = {"bool": "truth value", "int": "number", "float": "number", "timestamp": "time"}

KeyPath = tuple[str | int, ...]
"""The keys and positions that lead from the root of a document to a value."""

Lines = Mapping[KeyPath, int]

_MAX_NESTING = 50


class Unreadable(ValueError):
    """A document is too large, too deep, not UTF-8, or not what it should be. The text of the error is one line.

    `line` is the wrong line of a YAML document, counted from 1, or None.
    """

    def __init__(self, problem: str, line: int | None = None, hint: str | None = None) -> None:
        super().__init__(problem)
        self.line = line
        self.hint = hint or ("save it as YAML, in UTF-8" if line is None else "correct the line that it names")


class Unusable(Unreadable):
    """A YAML document has a value that is valid YAML but that Bayou cannot use; `line` is its line."""

    def __init__(self, line: int, problem: str, hint: str) -> None:
        super().__init__(problem, line, hint)


def read_at_most(file: IO[bytes], most: int) -> bytes:
    """Return the bytes of a file, but at most `most + 1`; the readers refuse the one byte more."""
    chunks, left = [], most + 1
    while left and (chunk := file.read(min(left, _CHUNK))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def not_blocking(path: str, flags: int) -> int:
    """Open a path, as an opener for `open`, without waiting for a writer if it is a pipe: a clone may contain one."""
    return os.open(path, flags | os.O_NONBLOCK)


def decode_text(data: bytes, most: int) -> str:
    """Return UTF-8 text of at most `most` bytes."""
    if len(data) > most:
        raise Unreadable(f"it has more than {most} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8 (at byte {error.start})") from None


def read_json(data: bytes, most: int) -> Any:
    """Return the value of a JSON document of at most `most` bytes; refuse NaN and text that is not Unicode."""
    text = decode_text(data, most)
    try:
        value = _JSON.decode(text)
        check_value(value)
    except RecursionError:
        raise Unreadable(f"it nests deeper than {limits.DEPTH}") from None
    except ValueError as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(f"it is not JSON: {' '.join(str(error).split())}") from None
    return value


def check_value(value: object) -> None:
    """Refuse a parsed value that nests too deep, has too many values, or contains text that is not Unicode."""
    count = 0
    level: list[object] = [value]
    for _ in range(limits.DEPTH):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below += item
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str) and not item.isascii() and not _is_unicode(item):
                raise Unreadable("it holds text that is not Unicode (a lone surrogate)")
            elif isinstance(item, float) and not math.isfinite(item):
                raise Unreadable("it holds a number that is too large")
        count += len(below)
        if count > limits.VALUES:
            raise Unreadable(f"it has more than {limits.VALUES} values")
        if not below:
            return
        level = below
    raise Unreadable(f"it nests deeper than {limits.DEPTH}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_yaml(data: bytes, most: int) -> Any:
    """Return the value of a YAML document of at most `most` bytes; None for an empty document.

    It consists of the types of JSON, and of dates and times; the keys of a mapping may be of any of these types but
    lists and mappings. If a key occurs twice, the last value counts.
    """
    node = compose_yaml(data, most)
    if node is None:
        return None
    value = construct_yaml(node)
    check_value(value)
    return value


def compose_yaml(data: bytes, most: int, values: int = limits.VALUES) -> Node | None:
    """Return the root node of a YAML document, whose nodes have line numbers; None for an empty document.

    With its aliases expanded, the document has at most `most` bytes and `values` nodes, and nests at most
    `limits.DEPTH` deep. So a caller may walk it recursively without regard to aliases.
    """
    import yaml  # noqa: PLC0415  (its import takes longer than most commands)

    text = decode_text(data, most)
    if _TAG_DIRECTIVE.search(text):  # libyaml compares each directive with all earlier ones
        raise Unreadable("it declares tags with %TAG")
    loader = None
    try:
        # Without libyaml's bindings, PyYAML's own parser yields the same events.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        node: Node | None = _Composer(loader, most, values).document()
        return node
    except yaml.YAMLError as error:
        raise _parse_error(error) from None
    finally:
        if loader is not None:
            loader.dispose()


def construct_yaml(node: Node) -> Any:
    """Return the value of a node that `compose_yaml` returned; all aliases of an anchor share one object."""
    return _Constructor().value(node)


class Source(Struct, frozen=True):
    """The value of a YAML file, and the line of each of its keys and values. `path` names the file."""

    path: str
    value: Any
    lines: Lines

    def line(self, key_path: KeyPath = ()) -> int:
        """Return the line of a value, or of the nearest value around it that has a line."""
        return nearest_line(self.lines, key_path) or 1

    def where(self, key_path: KeyPath = ()) -> str:
        """Return the file and the line of a value, for messages."""
        return f"{self.path}, line {self.line(key_path)}"


def parse_source(data: bytes, path: str) -> Source:
    """Parse a YAML file with its lines; raise `Unreadable` if it is not YAML.

    Raise `Unusable` for a key that occurs twice (YAML silently takes the last) and for a value that JSON does not have.
    """
    node = compose_yaml(data, limits.DEFINITION_BYTES, limits.DEFINITION_VALUES)
    if node is None:
        return Source(path, None, {})
    lines: dict[KeyPath, int] = {}
    _collect_lines(node, (), lines)
    value = construct_yaml(node)
    check_plain(value, lines)
    return Source(path, value, lines)


def nearest_line(lines: Lines, key_path: KeyPath) -> int | None:
    """Return the line of a value, or of the nearest value around it that has a line."""
    while key_path and key_path not in lines:
        key_path = key_path[:-1]
    return lines.get(key_path)


def check_plain(value: object, lines: Lines, key_path: KeyPath = ()) -> None:
    """Raise `Unusable` for a value that JSON does not have: dates, NaN, keys that are not texts."""
    match value:
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    line = nearest_line(lines, (*key_path, str(key))) or 1
                    raise Unusable(line, f"the name {key} is not a text", f'put it in quotes, as "{key}"')
                check_plain(item, lines, (*key_path, key))
        case list():
            for at, item in enumerate(value):
                check_plain(item, lines, (*key_path, at))
        case float() if not math.isfinite(value):
            raise Unusable(
                nearest_line(lines, key_path) or 1, f"{value} is no number that can be kept", "put it in quotes"
            )
        case None | bool() | int() | float() | str():
            return
        case _:
            kind = type(value).__name__
            raise Unusable(nearest_line(lines, key_path) or 1, f"{value} is taken for a {kind}", "put it in quotes")


def _collect_lines(node: Any, key_path: KeyPath, lines: dict[KeyPath, int]) -> None:
    line = lines.setdefault(key_path, node.start_mark.line + 1)
    if len(key_path) > _MAX_NESTING:  # recursion below must stay bounded
        raise Unusable(line, "values are nested too deeply", "take some of them apart")
    if node.id == "mapping":
        for key_node, value_node in node.value:
            key = str(key_node.value)
            inner = (*key_path, key)
            if inner in lines:
                raise Unusable(key_node.start_mark.line + 1, f"{key} stands there twice", "keep one of them")
            lines[inner] = key_node.start_mark.line + 1
            _collect_lines(value_node, inner, lines)
    elif node.id == "sequence":
        for at, item in enumerate(node.value):
            _collect_lines(item, (*key_path, at), lines)


class _Extent(NamedTuple):
    """How many nodes, characters and levels a node has with its aliases expanded."""

    nodes: int
    characters: int
    levels: int


class _OpenCollection:
    """A collection whose end the composer has not reached: its node, and the extent of its content so far."""

    __slots__ = ("anchor", "characters", "key", "levels", "node", "nodes")

    def __init__(self, node: Any, anchor: str | None) -> None:
        self.node = node
        self.anchor = anchor
        self.nodes = 1
        self.characters = 0
        self.levels = 0
        self.key: Any = None


class _Composer:
    """Builds the nodes of one document from a parser's events, and limits their extent with aliases expanded."""

    def __init__(self, loader: Any, characters: int, nodes: int) -> None:
        self._loader = loader
        self._characters = characters
        self._nodes = nodes
        self._open: list[_OpenCollection] = []
        self._anchors: dict[str, tuple[Any, _Extent]] = {}
        self._root: Any = None
        import yaml.nodes  # noqa: PLC0415

        self._kinds = yaml.nodes

    def document(self) -> Any:
        """Return the root node of the only document, or None if there is none."""
        from yaml import events  # noqa: PLC0415

        take = self._loader.get_event
        documents = 0
        while True:
            event = take()
            kind = type(event)
            if kind is events.ScalarEvent:
                self._scalar(event)
            elif kind is events.AliasEvent:
                self._alias(event)
            elif kind is events.SequenceStartEvent or kind is events.MappingStartEvent:
                self._start(event, "sequence" if kind is events.SequenceStartEvent else "mapping")
            elif kind is events.SequenceEndEvent or kind is events.MappingEndEvent:
                self._end(event)
            elif kind is events.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise Unreadable("it has more than one document", _line(event))
            elif kind is events.StreamEndEvent:
                return self._root

    def _scalar(self, event: Any) -> None:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._loader.resolve(self._kinds.ScalarNode, event.value, event.implicit)
            if tag == f"{_CORE}value":  # a plain =, whose special meaning in YAML 1.1 is never used
                tag = f"{_CORE}str"
        _check_tag(tag, "scalar", event)
        node = self._kinds.ScalarNode(tag, event.value, event.start_mark, event.end_mark, style=event.style)
        extent = _Extent(1, len(event.value), 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = node, extent
        self._add(node, extent, event)

    def _alias(self, event: Any) -> None:
        if any(collection.anchor == event.anchor for collection in self._open):
            raise Unreadable(
                f"values are nested too deeply: the alias {_shown(event.anchor)} stands in what it names", _line(event)
            )
        if event.anchor not in self._anchors:
            raise Unreadable(f"there is no anchor {_shown(event.anchor)}", _line(event))
        self._add(*self._anchors[event.anchor], event)

    def _start(self, event: Any, kind: str) -> None:
        tag = event.tag
        if tag is None or tag == "!":
            tag = f"{_CORE}{'seq' if kind == 'sequence' else 'map'}"
        _check_tag(tag, kind, event)
        if len(self._open) >= limits.DEPTH:
            raise Unreadable(f"it nests deeper than {limits.DEPTH}", _line(event))
        if self._open and _takes_key(self._open[-1]):
            raise Unreadable("a name in a mapping is a list or a mapping", _line(event))
        made = self._kinds.SequenceNode if kind == "sequence" else self._kinds.MappingNode
        self._open.append(
            _OpenCollection(made(tag, [], event.start_mark, None, flow_style=event.flow_style), event.anchor)
        )
        if event.anchor is not None:
            self._anchors.pop(event.anchor, None)

    def _end(self, event: Any) -> None:
        ended = self._open.pop()
        ended.node.end_mark = event.end_mark
        extent = _Extent(ended.nodes, ended.characters, ended.levels + 1)
        if ended.anchor is not None:
            self._anchors[ended.anchor] = ended.node, extent
        self._add(ended.node, extent, event)

    def _add(self, node: Any, extent: _Extent, event: Any) -> None:
        """Add a node to the innermost open collection, or make it the root."""
        if not self._open:
            self._root = node
            return
        inside = self._open[-1]
        inside.nodes += extent.nodes
        inside.characters += extent.characters
        inside.levels = max(inside.levels, extent.levels)
        if inside.nodes > self._nodes:
            raise Unreadable(f"it has more than {self._nodes} values", _line(event))
        if inside.characters > self._characters:
            raise Unreadable(
                f"it has more than {self._characters} bytes once its aliases are written out", _line(event)
            )
        if len(self._open) + extent.levels > limits.DEPTH:  # the node of an alias has levels of its own
            raise Unreadable(f"it nests deeper than {limits.DEPTH}", _line(event))
        if inside.node.id == "sequence":
            inside.node.value.append(node)
        elif inside.key is None:
            if node.id != "scalar":
                raise Unreadable("a name in a mapping is a list or a mapping", _line(event))
            inside.key = node
        else:
            inside.node.value.append((inside.key, node))
            inside.key = None


class _Constructor:
    """Makes values from nodes, each node's once, so that aliases cost nothing."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def value(self, node: Any) -> Any:
        if node.id == "scalar":
            return _scalar(node)
        if id(node) not in self._made:
            made = self._mapping(node) if node.id == "mapping" else [self.value(item) for item in node.value]
            self._made[id(node)] = made
        return self._made[id(node)]

    def _mapping(self, node: Any) -> dict[Any, Any]:
        own: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                for mapping in self._merged(value):
                    for name, inner in mapping.items():
                        merged.setdefault(name, inner)  # the first of several mappings counts
            else:
                own[_scalar(key)] = self.value(value)
        return {**merged, **own}

    def _merged(self, node: Any) -> list[dict[Any, Any]]:
        nodes = node.value if node.id == "sequence" else [node]
        if any(merged.id != "mapping" for merged in nodes):
            raise Unreadable("<< takes a mapping, or a list of mappings", node.start_mark.line + 1)
        return [self.value(merged) for merged in nodes]


def _takes_key(collection: _OpenCollection) -> bool:
    return collection.node.id == "mapping" and collection.key is None


def _scalar(node: ScalarNode) -> Any:
    """Return the value of a scalar."""
    kind, text = node.tag.removeprefix(_CORE), node.value
    try:
        match kind:
            case "null":
                return None
            case "bool":
                return _BOOLS[text.lower()]
            case "int" | "float" | "timestamp":
                if len(text) > limits.NUMBER_CHARACTERS:
                    raise ValueError(f"it has {len(text)} characters")
                return getattr(_pyyaml(), f"construct_yaml_{kind}")(node)
        return text
    except (ValueError, OverflowError, KeyError, AttributeError, IndexError) as error:  # such as !!int with a text
        problem = f"{_shown(text)} is no {_KINDS[kind]}: {' '.join(str(error).split())[:_SHOWN]}"
        raise Unreadable(problem, node.start_mark.line + 1) from None


@functools.cache
def _pyyaml() -> Any:
    """Return PyYAML's constructor, which parses the numbers and dates of YAML 1.1."""
    from yaml.constructor import SafeConstructor  # noqa: PLC0415

    return SafeConstructor()


def _check_tag(tag: str, kind: str, event: Any) -> None:
    if tag not in _TAGS[kind]:
        raise Unreadable(f"could not read the tag {_shown(tag)}: a document has none of its own", _line(event))


def _shown(text: str) -> str:
    """Return the beginning of a text as one printable line."""
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return text if text.isprintable() else json.dumps(text)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _parse_error(error: Any) -> Unreadable:
    """Translate an error of the parser."""
    mark = getattr(error, "problem_mark", None)
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    return Unreadable(problem, None if mark is None else mark.line + 1)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)
