"""Which paths may be payload (V8, V18, V21).

Bayou passes every path from a store, a tree or a caller to `refusal` before it uses the path. An accepted path is safe
in every tree; Bayou reports a refused path with the reason and skips none silently.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata

from bayou.core.errors import PathRefused

PAYLOAD_ROOTS = frozenset(
    {
        "data",
        "outputs",
        "workflow-runs",
        "definitions-evaluated",
        "workflows-evaluated",
        "audit",
        "logs",
        "files",
    }
)

MAX_SEGMENT_BYTES = 255
MAX_PATH_BYTES = 800
"""An S3 key has at most 1,024 bytes: this leaves room for a prefix, a namespace and the directory of a push."""

_PLAIN_NAME = r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}(?:\.[0-9A-Za-z_-]{1,99})?"
_plain = re.compile(f"(?:{'|'.join(sorted(PAYLOAD_ROOTS))})(?:/{_PLAIN_NAME}){{1,12}}").fullmatch
"""Hot: most paths consist of such short names and need no further check."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ESCAPE = re.compile(r"\\\\|\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}")

_RESERVED = frozenset(
    {
        ".bayou",
        ".lock",
        ".locks",
        ".datastore.lock",
        ".datastore-index.json",
        ".datastore-sync-state.json",
        ".push-queue.json",
        ".namespace.json",
        ".catalog-export.json",
        "_index",
    }
)
_RESERVED_SHAPES = (
    (re.compile(r"_catalog\.db.*", re.DOTALL), "a database of another system"),
    (re.compile(r"\.bayou-.*\.tmp", re.DOTALL), "a temporary file"),
    (re.compile(r"\.[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\.tmp"), "a temporary file"),
    (re.compile(r".*\.tmp\.\d+\.[0-9a-f-]{36}", re.DOTALL), "a temporary file"),
    (re.compile(r"~.*", re.DOTALL), "names that begin with ~ belong to pushes"),
)


def refusal(path: str) -> str | None:
    """Return why `path` cannot be payload, or None if it can."""
    if len(path) <= MAX_PATH_BYTES and _plain(path):
        return None
    root, slash, rest = path.partition("/")
    if root not in PAYLOAD_ROOTS or not slash or not rest:
        return "not below a payload root"
    return unsafe(path) or _reserved(path)


def check(path: str) -> str:
    """Return `path`, or raise `PathRefused` with the reason."""
    why = refusal(path)
    if why is not None:
        raise PathRefused(f"refused path {path!r}: {why}", hint="choose another name below one of the payload roots")
    return path


def relative(root: str | os.PathLike[str], spelling: str | os.PathLike[str]) -> str:
    """Return the path below a directory for a caller's spelling of it; the empty path is the directory itself.

    A relative spelling is relative to `root`. An absolute spelling may reach `root` by another name, through links
    outside of it; links below `root` are not followed (V21). Raise `PathRefused` if the path lies outside.
    """
    text = os.fspath(spelling)
    if "\0" in text:
        raise PathRefused(f"refused path {text!r}: a control character")
    lexical = _lexical(text)
    if lexical is not None:
        return lexical
    real = os.path.realpath(root)
    parts = os.path.join(real, text).split("/")
    for number in range(1, len(parts) + 1):
        inner = os.path.realpath("/".join(parts[:number]) or "/")
        is_leaf = number == len(parts)
        if inner != real and (is_leaf or not inner.startswith(f"{real}/")):
            continue  # do not resolve a link into the tree: a caller may want to delete the link itself
        lexical = _lexical("/".join([inner[len(real) + 1 :] or ".", *parts[number:]]))
        if lexical is not None:
            return lexical
    raise PathRefused(
        f"refused path {text!r}: it lies outside of the tree {os.fspath(root)}",
        hint="give a path inside the tree, absolute or relative to the tree's root",
    )


def _lexical(text: str) -> str | None:
    """Resolve `.`, `..` and double slashes of a relative path; return None if it is absolute or leads out."""
    path = os.path.normpath(text)
    if path.startswith("/") or path.partition("/")[0] == "..":
        return None
    return "" if path == "." else path


def unsafe(path: str) -> str | None:
    """Return why `path` is unsafe below a directory, or None if it is safe."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "not valid Unicode"
    if len(encoded) > MAX_PATH_BYTES:
        return f"longer than {MAX_PATH_BYTES} bytes"
    if _CONTROL.search(path):
        return "a control character"
    if "\\" in path:
        return "a backslash"
    if path.startswith("/"):
        return "absolute"
    if not path.isascii() and not unicodedata.is_normalized("NFC", path):
        return "not in Unicode normal form C"
    for segment in path.split("/"):
        if not segment:
            return "an empty segment"
        if segment in (".", ".."):
            return f"a segment {segment}"
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            return f"a name longer than {MAX_SEGMENT_BYTES} bytes"
    return None


def reserved_name(segment: str) -> str | None:
    """Return why a name is reserved, or None. Case does not matter: some file systems ignore it."""
    folded = segment.casefold()
    if folded in _RESERVED:
        return f"{segment} is a reserved name"
    for shape, why in _RESERVED_SHAPES:
        if shape.fullmatch(folded):
            return f"{segment}: {why}"
    return None


def _reserved(path: str) -> str | None:
    for segment in path.split("/"):
        # Hot: every reserved name starts with one of these, except `*.tmp.<pid>.<uuid>`.
        if segment[0] in "._~" or ".tmp." in segment.lower() or not segment.isascii():
            why = reserved_name(segment)
            if why is not None:
                return why
    return None


def escape(path: str) -> str:
    """Return a path as one printable line that a user can type: a backslash as `\\\\`, others as `\\x00` and `\\u202e`.

    Printable characters stay unchanged. `unescape` is the inverse.
    """
    if path.isprintable() and "\\" not in path:
        return path
    return "".join(_escaped(character) for character in path)


def unescape(text: str) -> str:
    """Return the path of a text that `escape` returned; other escapes stay unchanged."""
    return _ESCAPE.sub(lambda found: _unescaped(found[0]), text)


def _escaped(character: str) -> str:
    point = ord(character)
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def _unescaped(escape: str) -> str:
    if escape == "\\\\":
        return "\\"
    point = int(escape[2:], 16)
    return chr(point) if point <= sys.maxunicode else escape
