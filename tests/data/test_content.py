"""What content seems to be, and what passes of it."""

from __future__ import annotations

import hashlib
import io
import json

import pytest

from bayou.data.content import copy_measured


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("report.csv", b"a,b\n", "text/csv"),
        ("page.html", b"", "text/html"),
        ("table.csv.gz", b"\x1f\x8b", "application/gzip"),
        ("table.csv.br", b"\xff", "application/octet-stream"),
        ("x", b'{"a": 1}', "application/json"),
        ("x", b" [1, 2]\n", "application/json"),
        ("x", b"{not json}", "text/plain"),
        ("x", b"[2024-01-02] a line of a log", "text/plain"),
        ("x", "Größe\tund\nmehr".encode(), "text/plain"),
        ("x", b"5", "text/plain"),
        ("x", b"", "application/octet-stream"),
        ("x", b"\x00\x01", "application/octet-stream"),
        ("x", b"\xff\xfe", "application/octet-stream"),
        ("v1.2", b"text", "text/plain"),
        ("http://x/report.csv", b"\x00", "text/csv"),
        ("x", json.dumps([{"key": "v" * 50}] * 5000).encode(), "application/json"),
        ("x", json.dumps(["v" * 200_000]).encode(), "application/json"),
        ("x", b"[2024-01-02] a line of a log\n" * 5000, "text/plain"),
        ("x", "é".encode() * 100_000 + b"x", "text/plain"),
        ("x", b"x" + "é".encode() * 100_000, "text/plain"),
        ("x", b"[" * 100_000, "text/plain"),
    ],
)
def test_content_is_guessed_by_name_and_by_look(name: str, content: bytes, kind: str) -> None:
    assert copy_measured(content).content_type(name) == kind


@pytest.mark.parametrize("form", [bytes, bytearray, io.BytesIO, lambda data: iter([data[:7], b"", data[7:]])])
def test_content_of_every_form_is_measured_while_it_passes(form: type[bytes]) -> None:
    data = bytes(range(256)) * 1000
    target = io.BytesIO()
    measured = copy_measured(form(data), target)
    assert target.getvalue() == data
    assert (measured.size, measured.sha256) == (len(data), hashlib.sha256(data).hexdigest())
