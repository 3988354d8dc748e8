"""What a person sees at a terminal while a command works: no frame stands still, and the last count is true.

A proxy delays requests, so that each command takes a few seconds. A frame may stand for two seconds, and longer only by
what this process itself came too late while it watched: then the machine is busy, and the command waits too.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from tests.cli.screen import Recording, Terminal, record
from tests.sync.conftest import OBJECTS, Clone, Team

from bayou.config.trust import revoke
from bayou.core.ids import ulid
from bayou.models import create_model
from bayou_testing.faults import Delay, Fail, Rule
from bayou_testing.latency import LatencyProxy
from bayou_testing.proxy import HttpProxy
from bayou_testing.s3 import S3Endpoint

_STILL_S = 2.0
_LATE = 10
"""A busy machine delays a command, which has many threads and imports, by more than a process that only waits."""

MB = 1_000_000


def check(seen: Recording, *shown: str) -> None:
    """Check that the command succeeded, that no frame stood still, and that each of these was shown."""
    assert seen.code == 0, seen.last
    assert seen.longest_still() <= _STILL_S + _LATE * seen.late, seen.frames
    for text in shown:
        assert re.search(text, seen.text), seen.text
    assert "⠋" not in seen.last, "the line is gone when the command has ended"


def test_the_terminal_of_these_tests_shows_what_a_terminal_would():
    terminal = Terminal()

    terminal.feed("one\r\ntwo\r\x1b[2K2\r\x1b[1A\x1b[2Kthree\n")

    assert terminal.text == "three\n2"


@pytest.fixture
def clone(s3_team: Team) -> Clone:
    made = s3_team.clone("a")
    create_model(made.repo, "command/shell", "m", {"run": "echo hi"})
    made.write("files/first", "x")
    made.push()
    return made


@pytest.mark.parametrize(
    "size", [pytest.param(3 * MB, id="small"), pytest.param(1000 * MB, id="1 GB", marks=pytest.mark.soak)]
)
def test_putting_pulling_getting_and_verifying_show_what_they_do(s3_team: Team, clone: Clone, proxy: HttpProxy, size):
    file = clone.repo.root / "in.bin"
    with file.open("wb") as opened:
        for _ in range(size // MB):
            opened.write(os.urandom(MB))
    shown = f"{size // MB} MB" if size > 9 * MB else "3.0 MB"
    shown = "1.0 GB" if size == 1000 * MB else shown
    proxy.faults.add(Rule(Delay(2.5), method="PUT", path=OBJECTS, times=1))

    put = record("data", "put", "m", "item", "in.bin", cwd=clone.repo.root)

    check(put, r"pushing .*of 2 files, .* of " + shown, rf"{shown} in \d+")
    assert "m item: version 1" in put.last

    lazy = s3_team.clone("lazy", hydrate="lazy")
    shutil.copytree(clone.repo.root / "models", lazy.repo.root / "models", dirs_exist_ok=True)
    proxy.faults.clear()
    proxy.faults.add(Rule(Delay(2.5), method="GET", path=r"\.bayou/packs/", times=1))
    check(record("datastore", "sync", "--pull", cwd=lazy.repo.root, columns=60), "pulling ")

    proxy.faults.clear()
    proxy.faults.add(Rule(Delay(2.5), method="GET", path=OBJECTS, times=1))
    got = record("data", "get", "m", "item", "-o", "out.bin", cwd=lazy.repo.root, columns=60)

    check(got, f"pulling .* of {shown}", rf"{shown} in \d+")
    assert (lazy.repo.root / "out.bin").stat().st_size == size

    proxy.faults.clear()
    proxy.faults.add(Rule(Delay(2.5), method="GET", path=OBJECTS, times=1))
    verified = record("datastore", "verify", "--deep", cwd=lazy.repo.root)

    check(verified, f"verifying .* of {shown}", "all is well")


def shown_bytes(frame: str) -> float | None:
    """The bytes that a frame shows as done, of a known number."""
    found = re.search(r"([\d.]+) (B|KB|MB) of \d+ MB", frame)
    return float(found[1]) * {"B": 1, "KB": 1e3, "MB": 1e6}[found[2]] if found else None


def rates(seen: Recording) -> list[float]:
    """The speeds that were shown, in MB/s."""
    found = re.findall(r"([\d.]+) (KB|MB)/s, ", seen.text)
    return [float(number) / (1000 if unit == "KB" else 1) for number, unit in found]


def test_a_push_and_the_one_that_resumes_it_show_what_has_really_left(tmp_path: Path, s3_env: S3Endpoint):
    """Seen at 1 MB/s: `8.0 MB of 40 MB, 2.9 MB/s` after 3.5 s; and after a resume, a speed of what was there before."""
    rate, size = 5e6, 42 * MB
    with LatencyProxy(s3_env.host, s3_env.port, seconds=0.01, rate=rate) as link:
        clone = Team(tmp_path, f"s3://sync-tests/{ulid()}", {"endpoint": link.url}).clone("a")
        clone.lay("files/large", os.urandom(size))
        counts: list[tuple[float, int]] = []

        def watch(seen: Recording) -> bool:
            """Note what is shown and what has left; Ctrl-C once two parts are in the store."""
            shown = shown_bytes(seen.last) if seen.frames else None
            if shown is not None:
                counts.append((shown, link.usage().bytes_up))
            return shown is not None and shown > 17e6

        args = ("datastore", "sync", "--push", "--adopt")
        first = record(*args, cwd=clone.repo.root, columns=110, interrupt=watch)

        assert first.code == 130
        kept = re.search(
            r"([\d.]+) MB of files/large are in the store, and are not sent again", first.last.replace("\n", " ")
        )
        assert kept is not None, first.last
        for shown, left in counts:
            assert shown <= left + 2 * MB, counts
        assert max(rates(first)) <= 1.5 * rate / MB, first.text
        assert first.longest_still() <= _STILL_S + _LATE * first.late, first.frames

        second = record(*args, cwd=clone.repo.root, columns=110)

    spared = rf"{re.escape(kept[1])} MB did not have to be moved"
    check(second, "pushing .* of 42 MB", rf"[\d.]+ MB in .* s(, .*/s)?; {spared}")
    first_shown = next(shown for _, frame in second.frames if (shown := shown_bytes(frame)))
    assert first_shown >= float(kept[1]) * MB, "the bar begins where the first command stopped"
    assert all(speed <= 1.5 * rate / MB for speed in rates(second)), second.text
    closing = re.search(r"1 file, ([\d.]+) MB in", second.text)
    assert closing is not None
    assert float(closing[1]) <= size / MB - float(kept[1]) + 1


@pytest.mark.soak
def test_setup_and_hydrate_show_what_they_do(s3_team: Team, clone: Clone, proxy: HttpProxy, tmp_path: Path):
    clone.write_all({"data/t/m/n/1/raw": b"x" * MB, "data/t/m/n/1/metadata.yaml": b"{}"})
    clone.push()
    lazy = s3_team.clone("lazy", hydrate="lazy")
    lazy.pull()
    proxy.faults.add(Rule(Delay(2.5), method="GET", path=OBJECTS))

    check(record("datastore", "hydrate", cwd=lazy.repo.root), "pulling .* of 1.0 MB")

    assert record("init", "fresh", cwd=tmp_path).code == 0
    args = ("datastore", "setup", s3_team.url, "--option", f"endpoint={proxy.url}")
    check(record(*args, cwd=tmp_path / "fresh"), "pulling .* of 1.0 MB")  # its head is proof enough: nothing is probed


def test_no_progress_line_stands_in_the_way_of_a_question(clone: Clone):
    revoke(clone.repo.root)

    seen = record("datastore", "sync", cwd=clone.repo.root, answer="y\n")

    assert seen.code == 0
    assert seen.last.endswith("allow this on this machine? [y/N]: y\nalready in sync")
    assert any(frame.endswith("allow this on this machine? [y/N]:") for _, frame in seen.frames)


def test_a_store_that_is_unwell_is_shown_as_such(clone: Clone, proxy: HttpProxy):
    proxy.faults.add(Rule(Fail(503), method="GET", path=r"head\.json$", times=5))

    seen = record("datastore", "sync", cwd=clone.repo.root)

    check(seen, r"trying again, \d of 8: the store is busy")
    assert seen.last == "already in sync"


def test_a_start_of_spark_is_shown_with_its_time(clone: Clone, tmp_path: Path):
    """The start is faked: no server comes up within three seconds, and then none is there."""
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "sitecustomize.py").write_text(
        "import time\n"
        "from bayou.core.errors import SparkUnavailable\n"
        "import bayou.spark.session as session\n"
        "def start(server, deadline):\n"
        "    time.sleep(3)\n"
        "    raise SparkUnavailable('no server here')\n"
        "session._open_here = start\n"
    )
    path = os.pathsep.join([str(fake), str(Path(__file__).parents[2] / "src")])

    seen = record("data", "sql", "select 1", cwd=clone.repo.root, environ={"PYTHONPATH": path})

    assert seen.code == 1
    assert "starting Spark, 1 s" in seen.text
    assert "starting Spark, 2 s" in seen.text
    assert seen.longest_still() <= _STILL_S + _LATE * seen.late, seen.frames
    assert "error: no server here" in seen.last


def test_scripts_see_no_line_and_no_closing_line(clone: Clone, proxy: HttpProxy, processes):
    clone.write("files/large", b"x" * MB)
    proxy.faults.add(Rule(Delay(2.0), method="PUT", path=OBJECTS))
    processes.cwd = clone.repo.root

    ran = processes.run("datastore", "sync", "--push")

    assert (ran.code, ran.out, ran.err) == (0, "pushed 1 file (1.0 MB) as commit 3\n", "")
