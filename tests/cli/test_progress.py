"""The bar that shows how far a command has come."""

from __future__ import annotations

import io
import sys
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console

from bayou.cli.output import Output
from bayou.cli.progress import Bar
from bayou.core.progress import NoProgress, Progress


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def console(screen) -> Console:
    return Console(file=screen, force_terminal=True, width=100, color_system=None)


def appeared(bar: Bar) -> None:
    """Wait until the thread that draws the bar for the first time is done."""
    bar._timer.join(30)
    assert not bar._timer.is_alive()


def work(progress: Progress) -> None:
    progress.begin("pushing", 3, 3000)
    progress.advance(files=1, bytes=1500)
    progress.advance(files=1)
    progress.end()


def test_a_short_command_shows_nothing(console, screen):
    with Bar(delay_s=3600, console=console) as bar:
        work(bar)

    assert screen.getvalue() == ""


def test_nobody_at_a_terminal_means_no_bar_and_no_thread():
    before = threading.active_count()

    with Output(json=False, quiet=False, verbose=0).progress() as bar:
        work(bar)
        assert threading.active_count() == before

    assert not sys.stderr.isatty()


def test_a_long_command_shows_stages_with_files_and_bytes(console, screen):
    with Bar(delay_s=0, console=console) as bar:
        bar.begin("pushing", 3, 3000)
        appeared(bar)
        bar.advance(files=1, bytes=1500)
        bar._display.refresh()
        bar.begin("pulling", 10, None)
        bar.advance(files=2)
        bar._display.refresh()
        bar.end()

    text = screen.getvalue()
    assert "pushing" in text
    assert "1 of 3 files, 1.5 KB of 3.0 KB" in text
    assert "pulling" in text
    assert "2 of 10 files" in text
    assert "0 B" not in text.partition("pulling")[2]


def test_what_was_done_before_the_bar_appeared_counts(console, screen):
    with Bar(delay_s=0.2, console=console) as bar:
        bar.begin("pushing", None, None)
        bar.advance(files=7, bytes=7000)
        appeared(bar)
        bar._display.refresh()

    assert "7 files, 7.0 KB" in screen.getvalue()


def test_where_only_a_share_is_known_the_bar_shows_it_and_no_numbers(console, screen):
    with Bar(delay_s=0, console=console) as bar:
        bar.begin("listing", None, None)
        appeared(bar)
        bar.share(0.5)
        bar._display.refresh()
        (task,) = bar._display.tasks

        assert (task.completed, task.total) == (0.5, 1.0)

    assert "listing" in screen.getvalue()
    assert "0 files" not in screen.getvalue()


@pytest.mark.parametrize(("size", "rate"), [(40_000, "10 KB/s"), (None, "2 files/s")])
def test_after_a_second_the_bar_tells_the_rate(console, screen, size, rate, monkeypatch):
    with Bar(delay_s=0, console=console) as bar:
        bar.begin("pushing", 16, size)
        appeared(bar)
        now = bar._begun + 4
        monkeypatch.setattr("bayou.cli.progress.time", SimpleNamespace(monotonic=lambda: now))
        bar.advance(files=8, bytes=40_000 if size else 0)
        bar._display.refresh()

    assert rate in screen.getvalue()


def test_a_stage_fits_on_a_narrow_line(screen):
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    with Bar(delay_s=0, console=console) as bar:
        bar.begin("pushing", 100_000, 500_000_000)
        appeared(bar)
        bar._begun -= 10
        bar.advance(files=12_345, bytes=61_725_000)
        bar._display.refresh()

    assert "12,345 of 100,000 files, 62 MB of 500 MB, 6.2 MB/s" in screen.getvalue()


def test_what_is_told_after_the_bar_was_closed_goes_nowhere(console, screen):
    with Bar(delay_s=0, console=console) as bar:
        bar.begin("asking", 3, 3000)
        appeared(bar)
        bar.close()
        shown = screen.getvalue()
        work(bar)
        bar.share(0.5)

    assert screen.getvalue() == shown


@pytest.mark.parametrize(("options", "shown"), [({}, True), ({"json": True}, False), ({"quiet": True}, False)])
def test_scripts_get_no_bar_even_at_a_terminal(monkeypatch, options, shown):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    bar = Output(**({"json": False, "quiet": False, "verbose": 0} | options)).progress()

    assert (bar._timer is not None) is shown


def test_the_bar_is_gone_when_the_command_fails(console, screen):
    bar = Bar(delay_s=0, console=console)

    def fail() -> None:
        with bar:
            bar.begin("pushing", 3, 3000)
            appeared(bar)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()

    assert not bar._display.live.is_started
    erased_line, shown_cursor = "\x1b[2K", "\x1b[?25h"
    assert erased_line in screen.getvalue()[-30:]
    assert shown_cursor in screen.getvalue()[-30:]


def test_a_bar_that_comes_too_late_does_not_appear(console, screen):
    bar = Bar(delay_s=3600, console=console)
    with bar:
        bar.begin("pushing", 3, 3000)
    bar._appear()

    assert screen.getvalue() == ""


@pytest.mark.parametrize("progress", [NoProgress(), Bar(delay_s=None)])
def test_whoever_does_not_watch_is_told_all_the_same(progress, capsys):
    work(progress)

    assert capsys.readouterr() == ("", "")
