"""Streams, colours and tables, on a terminal and off it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bayou
from bayou.cli import output
from bayou.cli.output import CommandOutput, Table, colorize, count, fail, hint, moment, say, show, size, warn
from bayou.core.clock import format_ms, parse_duration
from bayou.core.text import VisibleStream, visible, visible_json

SOURCE = Path(bayou.__file__).resolve().parents[1]
PARTS = [say("done"), show("asked for"), warn("careful"), hint("next"), fail("broken")]
TABLE = Table(("name", "size"), [("data/x", "1 B"), ("a", "1,204 KB")], frozenset({"size"}))


def emit(capsys, *parts, json=False, quiet=False):
    CommandOutput(json=json, quiet=quiet, verbose=0).emit({"a": 1}, parts)
    return capsys.readouterr()


def test_results_go_to_stdout_and_the_rest_to_stderr(capsys):
    out, err = emit(capsys, *PARTS)

    assert out == "done\nasked for\n"
    assert err == "warning: careful\nhint: next\nerror: broken\n"


def test_quiet_keeps_what_was_asked_for_and_what_went_wrong(capsys):
    assert emit(capsys, *PARTS, quiet=True) == ("asked for\n", "error: broken\n")


def test_json_is_one_document_and_nothing_else(capsys):
    assert emit(capsys, *PARTS, TABLE, json=True) == ('{"a": 1}\n', "")


def test_off_a_terminal_a_table_is_aligned_text(capsys):
    assert emit(capsys, TABLE).out == "name        size\ndata/x       1 B\na       1,204 KB\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 日本 ❤️", "plain ü 日本 ❤️"),
        ("\x1b[0m\x7f\x9b", "\\x1b[0m\\x7f\\x9b"),
        ("a\tb\nerror: c\r", "a\\tb\\nerror: c\\r"),
        ("\udcff", "\\udcff"),
        ("a\u202eb\u2066\u200f\u061c", "a\\u202eb\\u2066\\u200f\\u061c"),
        ("\u2028\u2029\u200b\ufeff\U000e0041", "\\u2028\\u2029\\u200b\\ufeff\\U000e0041"),
    ],
)
def test_control_characters_are_made_visible(text, shown):
    assert visible(text) == shown


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_stream_in_pieces_is_made_visible(size):
    data = "ü\r\nprogress\rdone\x1b[2J\n\u202ex\ty".encode() + b"\xff\xc3"
    stream = VisibleStream()

    shown = "".join(stream.add(data[at : at + size]) for at in range(0, len(data), size)) + stream.add(b"", last=True)

    assert shown == "ü\nprogress\ndone\\x1b[2J\n\\u202ex\ty\\xff\\xc3"


def test_json_stays_the_same_value():
    value = {"a\u202e": ["\x9b", "ü", "\U000e0041", "\n"]}
    text = visible_json(json.dumps(value, ensure_ascii=False, indent=1))

    assert json.loads(text) == value
    assert "\u202e" not in text
    assert "\U000e0041" not in text
    assert "ü" in text


def on_terminal(script: str, **environ: str) -> str:
    """Run a script whose three streams are a terminal, and return what it showed."""
    ours, theirs = pty.openpty()
    environ = {"PYTHONPATH": str(SOURCE), "TERM": "xterm", "COLUMNS": "60"} | environ
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | environ
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:
        pass  # Linux says so when the other end is closed
    finally:
        os.close(ours)
    assert process.wait(30) == 0
    return shown.decode().replace("\r\n", "\n")


SHOW = """
import sys
from bayou.cli.output import *
table = Table(("name", "size"), [("[b]x" * 30, "1 B")])
CommandOutput(json={json}, quiet=False, verbose=0).emit({{"a": 1}}, [fail("broken"), table])
print("rich" in sys.modules)
"""


def test_a_terminal_gets_colours_and_whole_names():
    shown = on_terminal(SHOW.format(json=False))

    assert "\x1b[31merror:\x1b[0m broken" in shown
    assert shown.count("[b]x") >= 28, "a long name is folded, never cut"
    assert "…" not in shown


def test_no_color_is_respected():
    shown = on_terminal(SHOW.format(json=False), NO_COLOR="1")

    assert "\x1b[3" not in shown
    assert "error: broken" in shown


def test_a_terminal_gets_json_that_people_can_read_and_no_drawing_library():
    assert on_terminal(SHOW.format(json=True)) == '{\n  "a": 1\n}\nFalse\n'


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (9_940, "9.9 KB"), (9_960, "10 KB"), (12_345, "12 KB"),
        (999_400, "999 KB"), (999_600, "1.0 MB"), (3_400_000_000, "3.4 GB"), (2 * 10**18, "2,000 PB"),
    ],
)  # fmt: skip
def test_sizes_are_short(number, text):
    assert size(number) == text


def test_plurals_are_right():
    assert [count(number, "file") for number in (0, 1, 2, 1204)] == ["0 files", "1 file", "2 files", "1,204 files"]
    assert count(2, "copy", "copies") == "2 copies"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5s", 1.5), ("5m", 300), ("24h", 86400), ("7d", 604800), ("2w", 1209600), ("0", 0)],
)
def test_durations_are_numbers_with_a_unit(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1h", "1y", "1h30m", "1e3", "inf", "٣"])
def test_nothing_else_is_a_duration(text):
    assert parse_duration(text) is None


def test_times_are_told_to_the_second_here_and_exactly_to_scripts(monkeypatch):
    assert format_ms(1_893_553_445_678) == "2030-01-02T03:04:05.678Z"
    assert moment("2030-01-02T03:04:05.678Z").endswith(":04:05")


@pytest.mark.parametrize(
    ("zone", "text"),
    [("UTC", "2030-01-02 03:04:05"), ("Asia/Kolkata", "2030-01-02 08:34:05"), ("XYZ+5", "2030-01-01 22:04:05")],
)
def test_a_time_is_told_in_the_readers_zone(monkeypatch, zone, text):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    output._minute.cache_clear()
    try:
        assert moment("2030-01-02T03:04:05.678Z") == text
    finally:
        monkeypatch.undo()
        time.tzset()
        output._minute.cache_clear()


@pytest.mark.parametrize("text", ["yesterday", "", "2030-02-31T00:00:00.000Z", "2030-01-02T03:04:05+02:00", "2030"])
def test_a_time_of_another_form_is_left_as_it_is(text):
    assert moment(text) == text


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("NO_COLOR", "1")])
def test_a_dumb_terminal_and_no_color_get_no_escapes(monkeypatch, name, value):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colorize("error:", "red", True) != "error:"

    monkeypatch.setenv(name, value)

    assert colorize("error:", "red", True) == "error:"
