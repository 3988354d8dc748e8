"""Show the logs of methods: of an output, of the steps of a run, and while a run goes on.

A log goes to stdout, byte for byte, or with control characters made visible on a terminal. Where a command shows
several logs, a line above each says whose it is.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from msgspec import Struct

from bayou.cli.output import Document, Line, Part, fail, first_line, hint, show, show_text
from bayou.core.text import VisibleStream, visible
from bayou.data.logs import log_of_output, logs_of_run, read_log, tail_of

if TYPE_CHECKING:
    from bayou.data.catalog.rows import OutputRow, VersionRow
    from bayou.data.outputs import Output
    from bayou.data.records import Records
    from bayou.data.runs import Attempt, Run, StepRecord

JSON_BYTES = 1 << 20
"""A JSON document has at most so many of the last bytes of each log (V25)."""

LINES = 15
"""After a failure, a command shows so many of the last lines of a log."""

_TAIL_BYTES = 16 << 10
_POLL_S = 0.3


class StepLog(Struct, frozen=True):
    """A step of a run with one of its logs, or (None) without any. `attempt` counts from 1, if it has several."""

    job: str
    record: StepRecord
    log: VersionRow | None
    attempt: int | None = None

    @property
    def title(self) -> str:
        attempt = f", attempt {self.attempt}" if self.attempt is not None else ""
        what = f"{self.log.name} {self.log.version} of {self.log.model}" if self.log is not None else "no log"
        return f"{self.job} / {self.record.name}{attempt}: {self.outcome.status}, {what}"

    @property
    def outcome(self) -> StepRecord | Attempt:
        """What this attempt came to: the last one is the step's own record."""
        output = self.log.output if self.log is not None else None
        return next((attempt for attempt in self.record.attempts if output and attempt.output == output), self.record)


def steps_with_logs(records: Records, run: Run, step: str | None = None) -> list[StepLog]:
    """Return the steps of a run with their logs, in order; `step` chooses some, as `matches` says."""
    logs = logs_of_run(records, run.run_id)
    found: list[StepLog] = []
    for job in run.jobs:
        for record in job.steps:
            if step is not None and not matches(job.name, record.name, step):
                continue
            mine = logs.get((job.name, record.name), [])
            several = len(mine) > 1
            found += [StepLog(job.name, record, log, at if several else None) for at, log in enumerate(mine, 1)]
            if not mine:
                found.append(StepLog(job.name, record, None))
    return found


def matches(job: str, name: str, text: str) -> bool:
    """Say whether a text names a step: `step`, `job/step`, and of a loop `step` for all or `step[key]` for one."""
    names = {name, name.partition("[")[0]}
    return text in names or text in {f"{job}/{known}" for known in names}


def write_log(records: Records, log: VersionRow, lines: int | None) -> None:
    """Write a log, or its last lines, to stdout."""
    screen = Screen()
    if lines is None:
        for data in read_log(records, log):
            screen.write(data)
    else:
        screen.write(tail_of(records, log, lines=lines, most=JSON_BYTES).data)
    screen.end()


def write_logs(records: Records, steps: Sequence[StepLog], lines: int | None) -> None:
    """Write the logs of several steps to stdout; if there are several, a line above each says whose it is."""
    several = len(steps) > 1
    for found in steps:
        if several:
            Screen().title(found.title)
        if found.log is not None:
            write_log(records, found.log, lines)


class Screen:
    """Writes logs to stdout; ends the last line before anything else is written."""

    def __init__(self) -> None:
        self._visible = VisibleStream() if sys.stdout.isatty() else None
        self._last = b"\n"

    def write(self, data: bytes) -> None:
        if not data:
            return
        self._last = data[-1:]
        if self._visible is not None:
            sys.stdout.write(self._visible.add(data))
            sys.stdout.flush()
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def title(self, text: str) -> None:
        self.end()
        sys.stdout.write(f"==> {visible(text)} <==\n")
        sys.stdout.flush()

    def end(self) -> None:
        if self._last != b"\n":
            self.write(b"\n")


class Follower:
    """Shows what the logs of a run get while it runs, until it has ended."""

    def __init__(self, records: Records, run_id: str, step: str | None) -> None:
        self._records = records
        self._run_id = run_id
        self._step = step
        self._screen = Screen()
        self._shown: dict[tuple[str, str], int] = {}
        self._current: tuple[str, str] | None = None

    def follow(self, stopped: threading.Event, *, silent: bool) -> Run:
        """Return the run once it has ended, or once no process works on it here any more; `silent` only waits."""
        from bayou.workflows.run import runs_here  # noqa: PLC0415

        while True:
            goes_on = runs_here(self._records.repo, self._run_id)  # before the record is read: its end is the last save
            run = self._records.runs.get(self._run_id)
            if not silent:
                self._show(run)
            if run.status != "running" or not goes_on:
                self._screen.end()
                return run
            stopped.wait(_POLL_S)  # V12

    def _show(self, run: Run) -> None:
        for found in steps_with_logs(self._records, run, self._step):
            if found.log is None:
                continue
            key = found.log.directory, found.record.name
            start = self._shown.get(key, 0)
            for data in read_log(self._records, found.log, start):
                if key != self._current:
                    self._screen.title(f"{found.job} / {found.record.name}: {found.log.model}")
                    self._current = key
                self._screen.write(data)
                start += len(data)
            self._shown[key] = start


def log_json(records: Records, log: VersionRow | None, lines: int | None) -> dict[str, object]:
    """Return the fields of a log in a document: where it is, and its end."""
    if log is None:
        return {"log": None, "text": None, "left_out": 0}
    tail = tail_of(records, log, lines=lines, most=JSON_BYTES)
    return {"log": reference(log), "text": tail.text, "left_out": tail.left_out}


def reference(log: VersionRow) -> dict[str, object]:
    """Return where a log is: `data get` takes these."""
    return {"model": log.model, "name": log.name, "version": log.version, "size": log.size}


def output_json(records: Records, output: OutputRow, lines: int | None) -> Document:
    return {
        "model": output.model,
        "output_id": output.id,
        "method": output.method,
        "status": output.status,
        "started_at": output.started_at,
        "error": output.error,
        **log_json(records, log_of_output(records, output), lines),
    }


def run_json(records: Records, run: Run, found: Sequence[StepLog], lines: int | None) -> Document:
    return {
        "run_id": run.run_id,
        "workflow": run.workflow,
        "status": run.status,
        "logs": [
            {
                "job": one.job,
                "step": one.record.name,
                "status": one.outcome.status,
                "attempt": one.attempt,
                "model": one.record.model,
                "output_id": one.log.output if one.log is not None else one.record.output,
                "error": one.outcome.error,
                **log_json(records, one.log, lines),
            }
            for one in found
        ],
    }


def failure_text(
    records: Records, model: str, log: VersionRow | None, error: str, more: str, *, seen: bool
) -> Iterator[Part]:
    """Show why a method failed: its error, and the end of its log; `more` is the command that shows all of it.

    `seen`: the user has seen the log, with -v.
    """
    if log is not None and not seen:
        tail = tail_of(records, log, lines=LINES, most=_TAIL_BYTES)
        if tail.data:
            yield show(f"the end of the log of {model}:" if tail.left_out else f"the log of {model}:")
            yield _indented(tail.text)
    yield fail(first_line(error))
    if log is not None:
        yield hint(f"all that it printed: `{more}`")


def _indented(text: str) -> Line:
    return show_text("\n".join(f"  {line}" for line in text.rstrip("\n").split("\n")))


def model_failure(records: Records, output: Output, *, seen: bool) -> list[Part]:
    """Return what a person needs to know of a method that has failed."""
    if output.error is None:
        return []
    found = records.catalog.output(output.id)
    log = log_of_output(records, found) if found is not None else None
    more = f"bayou model logs {quote(output.model)} {output.id[:8]}"
    return list(failure_text(records, output.model, log, output.error, more, seen=seen))


def run_failures(records: Records, run: Run, *, seen: bool) -> Iterator[Part]:
    """Show why a run failed: each failed step's error with the end of its log."""
    for job in run.jobs:
        for record in job.steps:
            if record.status != "failed" or record.error is None:
                continue
            mine = [one for one in steps_with_logs(records, run, f"{job.name}/{record.name}") if one.log is not None]
            more = f"bayou workflow run logs {run.run_id} {quote(record.name)}"
            error = f"{job.name} / {record.name} failed: {first_line(record.error)}"
            log = mine[-1].log if mine else None
            yield from failure_text(records, record.model or record.name, log, error, more, seen=seen)


class StepPrinter:
    """With -v, prints what steps print, as it comes: whole lines, behind the name of the step if there are several."""

    def __init__(self, prefixed: bool) -> None:
        self._prefixed = prefixed
        self._lock = threading.Lock()
        self._streams: dict[tuple[str, str], VisibleStream] = {}
        self._lines: dict[tuple[str, str], str] = {}

    def show(self, job: str, step: str, data: bytes) -> None:
        """Print the whole lines of what a step has printed so far."""
        with self._lock:
            key = job, step
            stream = self._streams.setdefault(key, VisibleStream())
            *whole, rest = (self._lines.get(key, "") + stream.add(data)).split("\n")
            if len(rest) > _TAIL_BYTES:  # a line without end
                whole, rest = [*whole, rest], ""
            self._lines[key] = rest
            self._print(key, whole)

    def end(self, job: str, step: str) -> None:
        """Print the last line of a step that has ended, if no newline ended it."""
        with self._lock:
            rest = self._lines.pop((job, step), "")
            self._streams.pop((job, step), None)
            if rest:
                self._print((job, step), [rest])

    def _print(self, key: tuple[str, str], lines: Sequence[str]) -> None:
        prefix = f"{visible(f'{key[0]} / {key[1]}')} | " if self._prefixed else ""
        sys.stderr.writelines(f"{prefix}{line}\n" for line in lines)
        sys.stderr.flush()
