"""What is remembered of an output that may be longer than memory: its beginning and its end."""

from __future__ import annotations

HEAD = TAIL = 128 << 10


class Excerpt:
    """The first and the last bytes of an output; in between stands how much was left out."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def add(self, data: bytes) -> None:
        room = HEAD - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        beyond = len(self._tail) - TAIL
        if beyond > 0:
            del self._tail[:beyond]
            self._left_out += beyond

    def text(self) -> str:
        """Return it as text; what is none shows as \\x.. ."""
        if not self._left_out:
            return _text(self._head + self._tail)
        marker = f"\n[… {self._left_out:,} bytes left out: the log has them …]\n"
        return f"{_text(self._head)}{marker}{_text(self._tail)}"

    def last_line(self, longest: int) -> str:
        """Return the last line that says something, for a message of one line."""
        lines = _text(self._tail or self._head)[-4 * longest :].split("\n")
        said = next((line for line in reversed(lines) if line.strip()), "")
        return " ".join(said.split())[:longest]


def _text(data: bytes | bytearray) -> str:
    return data.decode(errors="backslashreplace")
