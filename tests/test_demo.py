"""What a newcomer sees first must run as it stands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayou.spark.server.files import ServerFiles, signal_server

ROOT = Path(__file__).parents[1]
DEMO = [sys.executable, str(ROOT / "demo" / "run.py")]
pytestmark = pytest.mark.timeout(600)

NO_JAVA = "import bayou.spark.java\nbayou.spark.java.USUAL_HOMES = ()\n"


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """An environment whose cache and temporary files are this test's own; class archives are kept from run to run."""
    classes, temporary = tmp_path / "cache" / "bayou" / "spark" / "classes", tmp_path / "tmp"
    classes.mkdir(parents=True)
    temporary.mkdir()
    cache = getattr(request.config, "cache", None)
    kept = cache.mkdir("spark-classes") if cache else tmp_path
    for archive in kept.glob("*.jsa"):
        (classes / archive.name).symlink_to(archive)
    yield {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(temporary)}
    told_to_end = not list(classes.parent.glob("*/server.json"))
    for lock in classes.parent.glob("*/server.lock"):
        signal_server(ServerFiles(lock.parent), signal.SIGKILL)  # without a class archive its end would take a while
    assert told_to_end, "it leaves no Spark running"
    assert list(temporary.glob("bayou-demo-*")) == [], "it leaves nothing behind"


def lines_of(text: str, place: dict[str, str]) -> list[str]:
    """Return what was printed, without what is another thing each time."""
    return re.sub(r"\bbayou-demo-\w+", "DEMO", text.replace(place["TMPDIR"], "/TMP")).splitlines()


@pytest.mark.spark
def test_the_demo_tells_its_story_to_the_end(place: dict[str, str]) -> None:
    ran = subprocess.run(DEMO, env=place, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    told = lines_of(ran.stdout, place)
    assert [line[:2] for line in told if re.match(r"\d\. ", line)] == [f"{n}." for n in range(1, 10)]
    assert told[1] == "STORE=file:///TMP/DEMO/store"
    story = [
        r"laptop\$ bayou workflow run nightly",
        r"  report +sql +usage-report +succeeded .*result 1 \(.*summary 1 \(.*",
        r"  nightly succeeded after .* s: run \w{26}",
        r"server\$ bayou datastore setup \$STORE --lazy",
        r"server\$ bayou workflow run search --status succeeded",
        r"  \w{26}  nightly   succeeded .*",
        r'  \{"used": \d+, "verdict": "\w+"\}',
        r"server\$ bayou datastore hydrate",
        r"server\$ bayou model run usage-report query",
        r"  1 +2 .* 97 +full",
        r"  error: collect / check failed: ValueError: .* \(checks.py, line \d+, in \w+\)",
        r"  .*renumbered 1 version.*",
        r"  as the laptop sees it",
        r"  as the server sees it",
        r"  disk-usage note: version 3 has the content of version 2 again .*",
        r"  disk-usage note: unchanged, version 3 is the same .*",
        r"  checked \d+ files: all is well",
        r"Done in \d+ s\. .*",
    ]
    found = iter(told)
    missing = [line for line in story if not any(re.fullmatch(line, one) for one in found)]
    assert missing == [], "in this order"
    assert "\x1b" not in ran.stdout


def test_without_java_the_demo_says_so_and_goes_on(place: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_JAVA)
    (tmp_path / "bin").mkdir()
    for program in ("awk", "cat", "cp", "df", "sh"):
        (tmp_path / "bin" / program).symlink_to(str(shutil.which(program)))
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    bare = {**place, "PYTHONPATH": path, "PATH": str(tmp_path / "bin"), "JAVA_HOME": ""}

    ran = subprocess.run(DEMO, env=bare, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    assert "There is no Java here" in ran.stdout
    assert "sudo apt-get install openjdk-17-jre-headless" in ran.stdout
    assert "spark/sql" not in ran.stdout
    assert "nightly succeeded" in ran.stdout
    assert "Done in" in ran.stdout


def test_a_demo_that_fails_or_is_stopped_says_so_and_tidies_up(place: dict[str, str], tmp_path: Path) -> None:
    """`bayou` is not what it should be: it fails, or it takes for ever."""
    (tmp_path / "python").symlink_to(sys.executable)
    fake = tmp_path / "bayou"
    fake.write_text("#!/bin/sh\nexit 7\n")
    fake.chmod(0o755)
    script = f"import runpy, sys; sys.executable = {str(tmp_path / 'python')!r}\n"
    script += f"runpy.run_path({DEMO[1]!r}, run_name='__main__')"

    failed = subprocess.run([sys.executable, "-c", script], env=place, capture_output=True, text=True, check=False)

    assert failed.returncode == 1
    assert failed.stderr.startswith("\nthe demo failed: `bayou spark status` ended with exit code 7")

    ready = tmp_path / "ready"
    fake.write_text(f"#!/bin/sh\necho $$ > {ready}.new; mv {ready}.new {ready}; exec sleep 600\n")
    with subprocess.Popen([sys.executable, "-c", script], env=place, stdout=subprocess.DEVNULL) as demo:
        while not ready.exists():
            assert demo.poll() is None
            time.sleep(0.02)
        demo.send_signal(signal.SIGTERM)

        assert demo.wait() == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(ready.read_text()), 0)
