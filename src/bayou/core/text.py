"""Text of others on its way to a person: what a terminal would obey, or an eye would not see, is made visible.

Names, tags, messages of stores and output of methods come from strangers. A newline in one is a line of its own, an
escape sequence is a command to the terminal, and a bidirectional character shows the rest in another order. The command
line uses these functions where text becomes output, and nowhere else.

Names in messages: the nearest to a wrong one, and the first few of many.
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
    """Return one line in which every character can be seen: controls, newlines and directions as `\\x1b`, `\\n`."""
    if text.isprintable():  # hot: a list may have a hundred thousand rows
        return text
    return _ANY.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """Return a text whose newlines and tabs are meant, with everything else as `visible` has it."""
    return _IN_LINES.sub(_escaped, _END.sub("\n", text))


def visible_json(text: str) -> str:
    """Return a JSON document of the same value, with nothing in it that a terminal obeys."""
    return text if text.isprintable() else _IN_LINES.sub(_json_escaped, text)


class VisibleStream:
    """Makes visible what comes in pieces: bytes that are no UTF-8 show as `\\xff`, a lone CR ends a line."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._cr = False

    def add(self, data: bytes, *, last: bool = False) -> str:
        """Take the next piece, and return it as text."""
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


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like a wrong one, or None if none is like it."""
    import difflib  # noqa: PLC0415  (only where a name is wrong)

    return next(iter(difflib.get_close_matches(name, list(known), 1)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint that asks for the nearest known name; `otherwise` is the hint where none is near."""
    near = nearest(name, known)
    return otherwise if near is None else f"did you mean {near}?"


def first_names(names: Sequence[str], most: int) -> str:
    """Return the first names as a list, and how many more there are: `a, b and 3 more`."""
    listed = ", ".join(names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"
