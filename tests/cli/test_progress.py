"""The bar that shows how far a command has come."""

from __future__ import annotations

import io
import re
import sys
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console

from bayou.cli.output import CommandOutput
from bayou.cli.progress import Bar, StageProgress, closing_line, stage_line
from bayou.core.activity import arrived, counted, moved, remark, waiting, watch
from bayou.core.activity import hidden as hidden_line
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

    with CommandOutput(json=False, quiet=False, verbose=0).progress() as bar:
        work(bar)
        assert threading.active_count() == before

    assert not sys.stderr.isatty()


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The time of the bar: a test moves it."""
    made = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("bayou.cli.progress.time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def hidden() -> Bar:
    """A bar that no screen shows: what it would show is `lines`."""
    return Bar(delay_s=None)


def test_a_long_command_shows_stages_with_files_and_bytes(console, screen):
    with Bar(delay_s=0, console=console) as bar:
        bar.begin("pushing", 3, 3000)
        appeared(bar)
        bar.advance(files=1, bytes=1500)
        bar._live.refresh()
        bar.begin("pulling", 10, None)
        bar.advance(files=2)
        bar._live.refresh()
        bar.end()

    text = screen.getvalue()
    assert "pushing ━━━━━━━━━━────────── 1 of 3 files, 1.5 KB of 3.0 KB" in text
    assert "2 of 10 files" in text
    assert "0 B" not in text.partition("pulling")[2]


def test_what_was_done_before_the_bar_appeared_counts(clock):
    bar = hidden()
    bar.begin("pushing", None, None)
    bar.advance(files=7, bytes=7000)

    assert "7 files, 7.0 KB" in bar.lines(80)[0]


def test_where_only_a_share_is_known_the_bar_shows_it_and_no_numbers(clock):
    bar = hidden()
    bar.begin("listing", None, None)
    bar.share(0.5)

    assert bar.lines(80) == ["⠋ listing ━━━━━━━━━━────────── 0 s"]


@pytest.mark.parametrize(("size", "rate"), [(40_000_000, "1.0 MB/s"), (None, "10 files/s")])
def test_the_rate_is_that_of_the_last_seconds_and_not_the_average(clock, size, rate):
    bar = hidden()
    bar.begin("pushing", 1600, size)
    bar.advance(files=80, bytes=9_000_000 if size else 0)  # at once, long ago
    for _ in range(300):
        clock.now += 0.1
        bar.advance(files=1, bytes=100_000 if size else 0)

    assert rate in bar.lines(100)[0]


def test_the_time_left_follows_the_rate_and_goes_when_nothing_moves(clock):
    bar = hidden()
    bar.begin("pushing", 2, 100_000_000)
    shown = []
    for _ in range(500):
        clock.now += 0.1
        bar.advance(bytes=100_000)
        shown.append(bar.lines(100)[0])

    assert not any("left" in line for line in shown[:25]), "too early to know"
    assert "50 s left" in shown[-1]
    clock.now += 6
    assert "left" not in bar.lines(100)[0]
    assert "nothing for 6 s" in bar.lines(100)[0]


def test_the_time_left_of_a_steady_link_never_jumps(clock):
    bar = hidden()
    bar.begin("pulling", 1, 60_000_000)
    left = []
    for _ in range(590):
        clock.now += 0.1
        bar.advance(bytes=100_000)
        found = re.search(r", (\d+) s left", bar.lines(100)[0])
        left.append(int(found[1]) if found else None)

    known = [number for number in left if number is not None]
    assert known == sorted(known, reverse=True)
    assert known[-1] == 1


def test_a_frame_changes_although_no_number_does(clock):
    bar = hidden()
    bar.begin("committing", None, None)
    frames = set()
    for _ in range(20):
        clock.now += 0.9
        frames.add(bar.lines(80)[0])

    assert len(frames) == 20


def test_bytes_that_a_failed_part_takes_back_are_not_shown(clock):
    bar = hidden()
    bar.begin("pushing", 1, 1000)
    bar.advance(bytes=600)
    bar.advance(bytes=-600)

    assert "0 B of 1.0 KB" in bar.lines(80)[0]


def test_what_is_waited_for_is_shown_with_its_time_even_without_a_stage(clock):
    bar = hidden()
    with watch(bar), waiting("starting Spark"):
        clock.now += 12

        assert bar.lines(80) == ["⠦ starting Spark, 12 s"]
    assert bar.lines(80) == ["⠦ working, 12 s"]


def test_a_remark_stands_below_the_stage_until_something_moves(clock):
    bar = hidden()
    bar.begin("pushing", 2, 2000)
    with watch(bar):
        remark("trying again, 3 of 8: the store is busy")
        assert bar.lines(80)[1] == "  trying again, 3 of 8: the store is busy"
        moved(1000)

    assert len(bar.lines(80)) == 1
    assert "1.0 KB of 2.0 KB" in bar.lines(80)[0]


@pytest.mark.parametrize("width", [100, 80, 60, 40, 20])
def test_a_line_fits_its_terminal(clock, width):
    bar = hidden()
    bar.begin("pushing", 100_000, 500_000_000)
    for _ in range(100):
        clock.now += 0.1
        bar.advance(files=123, bytes=617_250)
    bar.remark("trying again, 3 of 8: " + "x" * 200)

    stage, why = bar.lines(width)
    assert len(stage) <= width
    assert len(why) == width
    if width >= 40:
        assert "62 MB of 500 MB" in stage
    if width >= 60:
        assert "6.2 MB/s, 1 min" in stage
    if width == 100:
        assert "12,300 of 100,000 files" in stage


def test_the_closing_line_counts_content_once_that_is_read_hashed_and_pushed(clock):
    bar = hidden()
    for stage in ("reading", "hashing", "pushing"):
        bar.begin(stage, 1, 5_000_000)
        bar.advance(files=1, bytes=5_000_000)
        bar.end()

    assert closing_line(*bar._total(), 2.0) == "1 file, 5.0 MB in 2.0 s, 2.5 MB/s"


def test_a_command_that_moved_little_closes_without_a_rate():
    assert closing_line(2, 467, 90.0) == "2 files, 467 B in 1 min 30 s"


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

    bar = CommandOutput(**({"json": False, "quiet": False, "verbose": 0} | options)).progress()

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

    assert bar._live is None
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


def test_bytes_of_a_response_are_shown_as_they_arrive_and_count_once(clock):
    bar = hidden()
    bar.begin("pulling", 2, 10_000)
    first, second = bar.begin_request(8000), bar.begin_request(2000)
    bar.arrive(first, 4000)
    assert "4.0 KB of 10 KB" in bar.lines(80)[0]

    bar.arrive(second, 1000)
    bar.end_request(second, failed=True)
    assert "4.0 KB of 10 KB" in bar.lines(80)[0]

    bar.arrive(first, 4000)
    bar.end_request(first, failed=False)
    bar.advance(files=1, bytes=8000)
    assert "1 of 2 files, 8.0 KB of 10 KB" in bar.lines(80)[0]

    bar.advance(files=1, bytes=2000)
    assert "2 of 2 files, 10 KB of 10 KB" in bar.lines(80)[0]
    assert bar._total() == (2, 10_000)


def test_bytes_that_a_request_sends_unseen_are_no_rate_and_no_standstill(clock):
    """Seen: `918 B of 5.0 MB, 201 B/s, 7 h 16 min left`, and `nothing for 23 s` on a link that was full."""
    bar = hidden()
    bar.begin("pushing", 2, 5_000_918)
    bar.advance(files=1, bytes=918)
    bar.advance()
    request = bar.begin_request(5_000_000)
    clock.now += 4
    assert bar.lines(80)[0].endswith("1 of 2 files, 918 B of 5.0 MB, 5.0 MB under way, 4 s")

    clock.now += 4
    assert "nothing for" not in bar.lines(80)[0]

    bar.end_request(request, failed=False)
    bar.advance(files=1, bytes=5_000_000)
    assert "under way" not in bar.lines(80)[0]


def test_a_request_tells_its_bytes_to_the_line_of_its_own_thread(clock):
    bar = hidden()
    bar.begin("pulling", 1, 1000)
    with watch(bar):
        arrived(7)  # inside of no request
        counted(1000, lambda: arrived(500))()

    assert "500 B of 1.0 KB" in bar.lines(80)[0]


def send(bar: Bar, clock, size: int, rate: int, *, buffers: int) -> list[tuple[float, str]]:
    """Send one part as a system with such buffers does it; return how many bytes have left, and the line, over time."""
    request = bar.begin_request(size)
    begun, left, taken, seen = clock.now, 0.0, 0, []
    while left < size:
        room = min(size, int(left) + buffers) - taken
        if room:
            bar.hand_over(request, room)
        taken += room
        seen.append((left, bar.lines(100)[0]))
        clock.now += 0.1
        left = rate * (clock.now - begun)
    bar.end_request(request, failed=False)
    bar.advance(bytes=size)
    return seen


def test_bytes_that_the_system_has_taken_count_as_they_leave(clock):
    """Seen: `8.0 MB of 40 MB, 2.9 MB/s` after 3.5 s at 1 MB/s, and then the same for 5 s."""
    bar = hidden()
    bar.begin("pushing", 1, 40_000_000)

    seen = [
        (part * 8_000_000 + left, line)
        for part in range(5)
        for left, line in send(bar, clock, 8_000_000, 1_000_000, buffers=2_600_000)
    ]

    for left, line in seen:
        shown = re.search(r"([\d.]+) (B|KB|MB) of 40 MB", line)
        assert shown is not None
        have = float(shown[1]) * {"B": 1, "KB": 1000, "MB": 1e6}[shown[2]]
        assert left - 1_500_000 <= have <= left + 600_000, (left, line)  # the line shows whole MB
        rate = re.search(r"([\d.]+) MB/s", line)
        assert rate is None or 0.7 <= float(rate[1]) <= 1.3, (left, line)
    assert len({line for _, line in seen[20:]}) > 250, "it never stands still"


def test_bytes_that_were_there_are_shown_and_count_neither_as_speed_nor_as_moved(clock):
    bar = hidden()
    bar.begin("pushing", 1, 30_000_000)
    bar.skip(24_000_000)
    for _ in range(40):
        clock.now += 0.1
        bar.advance(bytes=100_000)

    assert "28 MB of 30 MB, 1.0 MB/s, 2 s left" in bar.lines(100)[0]
    assert closing_line(*bar._total(), 4.0, 24_000_000) == "4.0 MB in 4.0 s, 1.0 MB/s; 24 MB did not have to be moved"


def test_the_line_is_gone_while_a_question_is_asked_and_comes_back(console, screen):
    with Bar(delay_s=0, console=console) as bar:
        bar.begin("pulling", 2, 1000)
        appeared(bar)
        with watch(bar), hidden_line(), hidden_line():
            assert bar._live is None
            screen.truncate(0)
            screen.seek(0)
            bar._appear()
            assert screen.getvalue() == ""
        assert bar._live is not None
        bar._live.refresh()
        assert "pulling" in screen.getvalue()


def test_a_small_file_before_a_large_one_gives_no_absurd_time_left():
    """Seen: `1 of 2 files, 469 B of 60 MB, 133 B/s, 156 h 59 min left`, and half a minute later it was done."""
    stage = StageProgress("pushing", 0.0, all_files=2, all_bytes=60_000_000, files=1, bytes=469, changed=0.2, changes=3)

    assert stage_line(stage, 133.0, 133.0, 3.5, 90) == (
        "pushing ──────────────────── 1 of 2 files, 469 B of 60 MB, 3 s"
    )


def test_a_time_left_is_shown_some_seconds_after_the_first_bytes():
    """Seen: `524 KB of 100 MB, 159 KB/s, 13 min left` when an upload had waited three seconds for its first answer."""
    stage = StageProgress("pushing", 0.0, all_bytes=100_000_000)
    for now in (3.2, 4.2):
        stage.bytes += 2_000_000
        stage.change(now)

    assert "left" not in stage_line(stage, 1e6, 1e6, 4.3, 90)
    assert stage_line(stage, 1e6, 1e6, 6.3, 90).endswith("1.0 MB/s, 1 min 36 s left")
