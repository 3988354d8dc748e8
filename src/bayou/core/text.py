"""Text in messages: foreign text made visible, and names in hints.

Names, tags, messages of stores and output of methods come from outside. A newline in such a text would start a line of
its own, an escape sequence is a command to the terminal, and a bidirectional character reorders the rest of the line.
The command line calls `visible` and its variants where text becomes output, and nowhere else.

`did_you_mean`, `first_names` and `count` phrase the nearest name to a wrong one, the first few of many names, and how
many there are.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence

_HIDDEN = (
    "\x00-\x1f\x7f-\x9f"  # controls: C0, DEL, C1
    "\u00ad\u061c\u180e\u200b-\u200f\u2060-\u206f\ufeff\ufff9-\ufffb"  # of no width, or directions
    "\u2028-\u202e"  # ends of lines and paragraphs, directions
    "\ud800-\udfff"  # halves of characters
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # formats, tags
)
_ANY = re.compile(f"[{_HIDDEN}]")
_IN_LINES = re.compile(f"(?![\n\t])[{_HIDDEN}]")
_END = re.compile("\r\n?")


def visible(text: str) -> str:
    """Return one line of visible characters: controls, newlines and directions become `\\x1b`, `\\n`."""
    if text.isprintable():  # hot: a list may have a hundred thousand rows
        return text
    return _ANY.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """Return a text with its newlines and tabs, and everything else as in `visible`."""
    return _IN_LINES.sub(_escaped, _END.sub("\n", text))


def visible_json(text: str) -> str:
    """Return a JSON document of the same value without characters that a terminal interprets."""
    return text if text.isprintable() else _IN_LINES.sub(_json_escaped, text)


class VisibleStream:
    """Makes a stream of bytes visible: bytes that are not UTF-8 show as `\\xff`, a lone CR ends a line."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._cr = False

    def add(self, data: bytes, *, last: bool = False) -> str:
        """Return the next piece as text."""
        text = self._decoder.decode(data, last)
        if self._cr:
            text = "\r" + text
        self._cr = text.endswith("\r") and not last  # a newline may follow it
        return visible_lines(text[:-1] if self._cr else text)


def _escaped(found: re.Match[str]) -> str:
    return ascii(found.group())[1:-1]


def _json_escaped(found: re.Match[str]) -> str:
    units = found.group().encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def similar_names(name: str, known: Iterable[str], most: int, cutoff: float = 0.6) -> list[str]:
    """Return the known names that are similar to a wrong one, the most similar first; `cutoff` 1 means equal."""
    from difflib import get_close_matches  # noqa: PLC0415  (only where a name is wrong)

    return get_close_matches(name, list(known), most, cutoff)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a wrong one, or None if none is similar."""
    return next(iter(similar_names(name, known, 1)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint with the nearest known name, or `otherwise` if none is similar."""
    similar = nearest(name, known)
    return otherwise if similar is None else f"did you mean {similar}?"


def count(number: int, singular: str, plural: str | None = None) -> str:
    """Return `1 file`, `2 files`, `1,204 files`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def first_names(names: Sequence[str], most: int) -> str:
    """Return the first `most` names, and how many more there are: `a, b and 3 more`."""
    listed = ", ".join(names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"
