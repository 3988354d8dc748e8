"""A workflow runs on one machine; another one finds the run, reads its data, and asks about all of it in SQL.

    ./dev demo [--keep]

Every `$` line is a command that you could type yourself, and what stands below it is what it printed. The store is a
directory, so nothing has to be started but Spark, which the demo stops again if it was not running before.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bayou.spark.server.files import ServerFiles
from bayou.spark.server.watch import end_if_unused

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
MOST_LINES = 24
GRACE_S = 8.0
SPARK_IDLE_S = "120"
"""For a demo that is killed: its Spark ends by itself soon after."""


class Failed(Exception):
    """The demo did not go as it says it does."""


def paint(code: str, text: str) -> str:
    return text if "NO_COLOR" in os.environ or not sys.stdout.isatty() else f"\033[{code}m{text}\033[0m"


def heading(text: str) -> None:
    print(f"\n{paint('1', text)}", flush=True)


def say(*lines: str) -> None:
    for line in lines:
        print(f"  {line}", flush=True)


class Machine:
    """A machine of the story: a directory that commands are typed in."""

    def __init__(self, work: Path, name: str) -> None:
        self.root = work / name
        self.root.mkdir()
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("BAYOU_")},
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "FILES": str(HERE / "repo"),
            "STORE": (work / "store").as_uri(),
            "BAYOU_SPARK_IDLE": SPARK_IDLE_S,
        }

    def type(self, command: str, *expected: str, code: int = 0) -> None:
        """Type a command, show what it prints, and make sure that it says and ends as the story claims."""
        print(paint("36", f"{self.root.name}$ {command}"), flush=True)
        done = self._run(command, stderr=subprocess.STDOUT)
        lines = done.stdout.rstrip().splitlines()
        say(*lines[:MOST_LINES])
        if len(lines) > MOST_LINES:
            say(paint("2", f"… {len(lines) - MOST_LINES} more lines"))
        if done.returncode != code:
            raise Failed(f"`{command}` ended with exit code {done.returncode}")
        for text in expected:
            if text not in done.stdout:
                raise Failed(f"`{command}` does not say {text!r}")

    def ask(self, command: str) -> dict[str, object]:
        """Run a command unseen, and return what it says as JSON."""
        done = self._run(f"{command} --json", stderr=subprocess.PIPE)
        if done.returncode != 0:
            raise Failed(f"`{command}` ended with exit code {done.returncode}: {done.stderr}")
        answer: dict[str, object] = json.loads(done.stdout)
        return answer

    def _run(self, command: str, *, stderr: int) -> subprocess.CompletedProcess[str]:
        """Run a command in a group of its own, so that all of it can be ended when the demo is."""
        process = subprocess.Popen(
            command,
            shell=True,
            cwd=self.root,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            process_group=0,
        )
        try:
            out, err = process.communicate()
        except BaseException:
            end(process)
            raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def end(process: subprocess.Popen[str]) -> None:
    """End a command with all that it has started; what is not gone soon is killed."""
    until = time.monotonic() + GRACE_S
    try:
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < until:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it is gone


def tell(work: Path) -> None:
    """Tell the story."""
    laptop, server = Machine(work, "laptop"), Machine(work, "server")
    (work / "store").mkdir()
    spark = laptop.ask("bayou spark status")
    try:
        play(laptop, server, has_java=spark["java"] is not None)
    finally:
        if spark["log"] is not None and not spark["running"]:
            end_if_unused(ServerFiles(Path(str(spark["log"])).parent))


def play(laptop: Machine, server: Machine, *, has_java: bool) -> None:
    heading("1. A repo is a directory. Models and workflows are files in it, which you commit.")
    laptop.type("bayou init")
    laptop.type("cp -R $FILES/. .")
    if not has_java:
        say(paint("33", "There is no Java here, and Spark needs it: the report in SQL is left out, the rest goes on."))
        laptop.type("bayou spark status", "install it with")
        leave_out_the_report(laptop.root / "workflows" / "nightly.yaml")
    laptop.type("cat workflows/nightly.yaml")
    laptop.type("bayou workflow graph nightly", "check (disk-check call)")

    heading("2. What runs make is shared through a bucket. Here it is a directory.")
    laptop.type("bayou datastore setup $STORE")

    heading("3. A run: each step writes versions of data, and pushes them." + " Spark takes a moment." * has_java)
    laptop.type("bayou workflow run nightly", "succeeded")

    heading(
        "4. Another machine, with the same files (a git clone, say), has it all; content comes when it is asked for."
    )
    server.type("bayou init")
    server.type("cp -R $FILES/. .")
    server.type("bayou datastore setup $STORE --lazy")
    server.type("bayou workflow run search --status succeeded", "nightly")
    server.type("bayou data get disk-check result", "verdict")
    server.type("bayou datastore hydrate")

    heading("5. It adds to it, and asks about all of it.")
    server.type("""bayou model run disk-check call --input 'arguments={"used": "97"}'""", "succeeded")
    if has_java:
        server.type("bayou model run usage-report query", "succeeded")
        server.type("bayou data get usage-report result -o report.parquet")
        server.type("""python -c 'import pandas; print(pandas.read_parquet("report.parquet"))'""", "full")
    else:
        server.type("""bayou data query 'name == "result" && attributes.verdict == "full"'""", "disk-check")

    heading("6. A run that fails says where and why. The log of each step stays, for peers too.")
    laptop.type("bayou workflow run nightly --input mount=/nowhere", "checks.py, line", code=1)
    laptop.type("bayou workflow run logs latest usage", "/nowhere")

    heading("7. Two write the same version while they cannot see each other. Both are kept.")
    laptop.type("echo 'as the laptop sees it' | bayou data put disk-usage note --offline")
    server.type("echo 'as the server sees it' | bayou data put disk-usage note --offline")
    laptop.type("bayou datastore sync")
    server.type("bayou datastore sync")
    server.type("bayou data get disk-usage note --version 1", "as the laptop sees it")
    server.type("bayou data get disk-usage note --version 2", "as the server sees it")

    heading("8. What was deleted comes back, and what has not changed makes no new version.")
    server.type("bayou data delete disk-usage note -y", "deleted 2 versions")
    server.type("bayou data undelete disk-usage note", "version 3")
    server.type("echo 'as the server sees it' | bayou data put disk-usage note", "unchanged")

    heading("9. Every commit is in the log, and every object is where the index says.")
    server.type("bayou datastore log -n 3")
    server.type("bayou datastore verify", "all is well")


def leave_out_the_report(workflow: Path) -> None:
    text = workflow.read_text()
    workflow.write_text(text[: text.index("  - name: report")])


def interrupted(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def main() -> int:
    keep = "--keep" in sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    begun = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="bayou-demo-"))
    print(f"FILES={HERE / 'repo'}\nSTORE={(work / 'store').as_uri()}")
    try:
        tell(work)
    except Failed as error:
        print(f"\n{paint('31', 'the demo failed:')} {error}", file=sys.stderr)
        return 1
    finally:
        if not keep:
            shutil.rmtree(work, ignore_errors=True)
    left = f"The repos are in {work}." if keep else "`./dev demo --keep` leaves the repos, to look around in."
    print(f"\nDone in {time.monotonic() - begun:.0f} s. {left} Next: README.md, docs/.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
