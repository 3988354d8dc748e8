"""Draw the pictures of docs/protocol.md as SVG files. `python tools/diagrams.py` writes them to docs/pictures.

They are drawn here, and not by a library in the reader's browser, so that the site loads nothing from elsewhere and the
pictures show in any viewer of the repository too.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"

_STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1b2b2b }
  .small { font-size: 12px; fill: #456 } .bold { font-weight: 600 } .good { fill: #06704a } .bad { fill: #a83225 }
  .box { fill: #e3f2ef; stroke: #0b7a70; stroke-width: 1.5 } .note { fill: #fff7de; stroke: #c9a227 }
  .line { stroke: #9bb; stroke-dasharray: 4 4 } .arrow { stroke: #245; stroke-width: 1.5; fill: none }
  .back { stroke-dasharray: 5 3 }
"""
_COLUMN, _ROW, _TOP = 250, 42, 70


class Arrow(NamedTuple):
    """A message between two columns; `kind`: a request, or an answer that is good or bad."""

    source: int
    target: int
    text: str
    kind: str = "request"


class Note(NamedTuple):
    """What happens in one column."""

    column: int
    text: str


def sequence(title: str, columns: Sequence[str], steps: Sequence[Arrow | Note]) -> str:
    """Draw who says what to whom, from top to bottom."""
    width, height = _COLUMN * len(columns), _TOP + _ROW * len(steps) + 50
    middle = [_COLUMN * n + _COLUMN // 2 for n in range(len(columns))]
    parts = [f'<line class="line" x1="{x}" y1="52" x2="{x}" y2="{height - 16}"/>' for x in middle]
    parts += [_box(x, 32, 170, 36, name, "box") for x, name in zip(middle, columns, strict=True)]
    for number, step in enumerate(steps):
        y = _TOP + _ROW * number + 30
        if isinstance(step, Note):
            parts.append(_box(middle[step.column], y, 232, 30, step.text, "note", "small"))
        else:
            parts += _arrow(middle[step.source], middle[step.target], y, step)
    return _svg(title, width, height, parts)


def _arrow(start: int, end: int, y: int, step: Arrow) -> list[str]:
    side = 1 if end > start else -1
    answer = "" if step.kind == "request" else " back"
    color = {"good": " good", "bad": " bad"}.get(step.kind, "")
    return [
        f'<path class="arrow{answer}" d="M{start + 4 * side} {y} H{end - 6 * side}" marker-end="url(#head)"/>',
        _text((start + end) // 2, y - 7, step.text, f"small{color}"),
    ]


def _box(x: int, y: int, width: int, height: int, text: str, kind: str, size: str = "bold") -> str:
    """Draw a box around its middle, with text in it; a | begins a new line."""
    lines = text.split("|")
    first = y + 5 - 9 * (len(lines) - 1)
    texts = [_text(x, first + 18 * n, line, "small" if n else size) for n, line in enumerate(lines)]
    frame = (
        f'<rect class="{kind}" x="{x - width // 2}" y="{y - height // 2}" width="{width}" height="{height}" rx="7"/>'
    )
    return "".join([frame, *texts])


def _text(x: int, y: int, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="middle">{escape(text)}</text>'


def _svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    marker = '<marker id="head" markerWidth="9" markerHeight="9" refX="7" refY="4" orient="auto-start-reverse">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            f'<defs>{marker}<path d="M0 0 L8 4 L0 8 z" fill="#245"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="10" fill="#fff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def places() -> str:
    """Draw two machines and the bucket between them."""
    parts = [
        _box(
            150,
            75,
            240,
            100,
            "Ana's laptop|bayou.toml, models/ (Git)|.bayou/tree: her copy|.bayou/state: base, journal",
            "box",
        ),
        _box(
            150,
            235,
            240,
            100,
            "a server|bayou.toml, models/ (Git)|.bayou/tree: its copy|.bayou/state: base, journal",
            "box",
        ),
        _box(640, 75, 300, 60, "head.json|the one object that changes", "note"),
        _box(640, 155, 300, 60, "index nodes|immutable; list files, hashes, places", "box"),
        _box(640, 235, 300, 60, "packs and large files|immutable; the bytes", "box"),
        '<rect x="470" y="16" width="340" height="278" rx="12" fill="none" stroke="#0b7a70" stroke-dasharray="6 4"/>',
        _text(640, 288, "the bucket", "small"),
    ]
    for y in (75, 235):
        parts += [
            f'<path class="arrow" d="M274 {y} H464" marker-end="url(#head)" marker-start="url(#head)"/>',
            _text(369, y - 8, "push, pull", "small"),
        ]
    return _svg("A laptop, a server and a bucket", 830, 310, parts)


RACE = (
    Arrow(0, 1, "GET head"),
    Arrow(1, 0, "head 7, ETag a", "answer"),
    Arrow(2, 1, "GET head"),
    Arrow(1, 2, "head 7, ETag a", "answer"),
    Arrow(0, 1, "PUT pack, nodes: new keys"),
    Arrow(2, 1, "PUT pack, nodes: new keys"),
    Arrow(2, 1, "PUT head 8, if ETag is a"),
    Arrow(1, 2, "200, ETag b: it is commit 8", "good"),
    Arrow(0, 1, "PUT head 8, if ETag is a"),
    Arrow(1, 0, "412: it is not", "bad"),
    Arrow(0, 1, "GET head, and nodes that differ"),
    Note(0, "merge; upload no file again"),
    Arrow(0, 1, "PUT head 9, if ETag is b"),
    Arrow(1, 0, "200: it is commit 9", "good"),
    Note(1, "head 9 names both clients' files"),
)

PUT = (
    Note(0, "keep the input, durable on disk"),
    Arrow(0, 1, "take the model's lease"),
    Arrow(0, 1, "pull what belongs to the model"),
    Note(0, "write the version, sync to disk"),
    Note(0, "journal: open a row"),
    Note(0, "rename to the next number"),
    Note(0, "journal: close the row"),
    Arrow(0, 1, "PUT pack and index nodes"),
    Arrow(1, 0, "all acknowledged", "good"),
    Arrow(0, 1, "swap the head"),
    Arrow(1, 0, "acknowledged: everybody sees it", "good"),
    Note(0, "base takes it; the row is dropped"),
    Arrow(0, 1, "release the lease"),
)


def pictures() -> dict[str, str]:
    """Return the pictures by the names of their files."""
    return {
        "places.svg": places(),
        "race.svg": sequence("Two writers race for the head", ("client A", "the bucket", "client B"), RACE),
        "put.svg": sequence("bayou data put", ("this machine", "the bucket"), PUT),
    }


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (PICTURES / name).write_text(text, encoding="utf-8")
