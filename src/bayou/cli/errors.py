"""A command prints an exception as an error, and ends with the exit code that `core.errors` gives it."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

import click
from msgspec import Struct
from msgspec.structs import replace

from bayou.cli import signals
from bayou.cli.output import colorize, files, size
from bayou.core import kept
from bayou.core.deadline import MORE_TIME
from bayou.core.errors import BayouError, Cancelled, DeadlinePassed, UsageError
from bayou.core.text import visible

if TYPE_CHECKING:
    from traceback import TracebackException

_USAGE = UsageError.exit_code
_FRAMES = 50
"""A traceback shows the innermost frames, so that endless recursion does not fill the screen."""


class RenderedError(Struct, frozen=True):
    """An error as people and scripts get it."""

    code: str
    message: str
    hint: str | None
    exit_code: int

    def text(self, *, json: bool, color: bool = False) -> str:
        if json:
            from json import dumps  # noqa: PLC0415

            return dumps({"error": {"code": self.code, "message": self.message, "hint": self.hint}}) + "\n"
        lines = f"{colorize('error:', 'red', color)} {visible(self.message)}\n"
        if self.hint:
            lines += f"{colorize('hint:', 'cyan', color)} {visible(self.hint)}\n"
        return lines


def asks_for_json(args: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, even one that cannot be parsed."""
    options = args[: args.index("--")] if "--" in args else args
    return "--json" in options


def report(error: BaseException, *, json: bool, verbose: int) -> int:
    """Print what went wrong to stderr, and return the exit code."""
    problem = _without_secrets(_with_notes(_rendered(error), error))
    is_bug = problem.code == "internal"
    number = signals.received()
    if number is not None and isinstance(error, Cancelled) and error.hint is None:
        problem = interrupted(number)  # a thread of this command has noticed the signal first
    elif number is not None and not isinstance(error, BayouError | KeyboardInterrupt | click.Abort):
        ended = interrupted(number)  # V17: the signal came first; an error of the clean-up follows it
        problem = replace(ended, message=f"{ended.message}; on the way out: {problem.message}")
    _flush_or_abandon(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return problem.exit_code  # the program that read the output has closed the pipe
    text = problem.text(json=json, color=sys.stderr.isatty())
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and not json:
        text = f"{error.ctx.get_help()}\n"
    if verbose and (is_bug or verbose > 1):
        text = _trace(error) + text
    with suppress(OSError):  # stderr may be closed; the exit code remains
        sys.stderr.write(text)
    _flush_or_abandon(sys.stderr)
    signals.mark_reported()
    return signals.exit_code() or problem.exit_code


def interrupted(number: int) -> RenderedError:
    """Return the error for a command that a signal ended."""
    word = "terminated" if number == signal.SIGTERM else "interrupted"
    return _without_secrets(RenderedError(Cancelled.code, word, kept_hint(), 128 + number))


def kept_hint() -> str:
    """Return what the command has kept so far, and the command that continues."""
    record = kept.current()
    counted = [
        f"{files(number.files, number.bytes)} {what}"
        for number, what in (
            (record.pulled, "pulled, and kept"),
            (record.pushed, "pushed"),
            (record.arrived, "already in the store, and not sent again"),
        )
        if number.files
    ]
    counted += [
        _part_of(parts, what)
        for parts, what in (
            (record.part_sent, "in the store, and are not sent again"),
            (record.part_fetched, "here, and are not fetched again"),
        )
        if any(parts.values())
    ]
    facts = [record.what, *counted] if counted else [record.what, record.nothing]
    go_on = f"to go on: `{record.go_on}`" if record.go_on else "the same command again goes on from there"
    return "; ".join([*(text for text in facts if text), go_on])


def _part_of(parts: Mapping[str, int], what: str) -> str:
    """Return how much of files that were on their way is kept."""
    begun = [path for path, done in parts.items() if done]
    of = begun[0] if len(begun) == 1 else f"{len(begun):,} large files"
    return f"{size(sum(parts.values()))} of {of} are {what}"


def _rendered(error: BaseException) -> RenderedError:
    match error:
        case DeadlinePassed():
            more = error.hint or ""
            if "--timeout" in (kept.current().go_on or ""):
                more = more.replace(MORE_TIME, "a longer --timeout")
            if "more time" not in more:  # the hint is about the last request
                more = f"{more}; or allow more time" if more else "allow more time"
            return RenderedError(error.code, error.message, f"{kept_hint()}; {more}", error.exit_code)
        case BayouError():
            return RenderedError(error.code, error.message, error.hint, error.exit_code)
        case signals.Terminated():
            return interrupted(signal.SIGTERM)
        case KeyboardInterrupt() | click.Abort():
            return interrupted(signal.SIGINT)
        case click.exceptions.NoArgsIsHelpError():
            return RenderedError(UsageError.code, "no command given", _see_help(error), _USAGE)
        case click.UsageError():
            return RenderedError(UsageError.code, _sentence(error.format_message()), _see_help(error), _USAGE)
        case FileNotFoundError() if error.filename is None and _is_directory_gone():
            text = "the current directory has been deleted"
            return RenderedError("os_error", text, "go to another one with cd", 1)
        case OSError() if error.errno is not None:
            where = f"{error.filename}: " if error.filename is not None else ""
            return RenderedError("os_error", f"{where}{os.strerror(error.errno)}", _os_hint(error.errno), 1)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return RenderedError(
        "internal", f"this is a bug: {text}", "the same command with -v shows where; please report it", 1
    )


def _with_notes(problem: RenderedError, error: BaseException) -> RenderedError:
    """Append errors of the clean-up to the message (V17): the first error keeps its code and its hint."""
    notes: list[str] = getattr(error, "__notes__", [])
    return replace(problem, message="; ".join([problem.message, *notes]))


def _without_secrets(problem: RenderedError) -> RenderedError:
    """Redact credentials of this process, and private keys (V26)."""
    from bayou.core.redaction import redactor  # noqa: PLC0415

    hide = redactor().text
    return replace(problem, message=hide(problem.message), hint=problem.hint and hide(problem.hint))


def _trace(error: BaseException) -> str:
    """Return a traceback, redacted, and indented so that no line of it looks like a message of Bayou."""
    from traceback import TracebackException  # noqa: PLC0415

    from bayou.core.redaction import redactor  # noqa: PLC0415

    hide = redactor().text
    entries = _entries(TracebackException.from_exception(error, limit=-_FRAMES))
    return "".join(f"  {visible(hide(entry))}\n" for entry in entries)


def _entries(trace: TracebackException) -> Iterator[str]:
    """Yield the lines of a traceback. Unlike the standard library's, a line with a newline in a name stays one line."""
    earlier = trace.__cause__ or (None if trace.__suppress_context__ else trace.__context__)
    if earlier is not None:
        yield from _entries(earlier)
        yield "which led to:"
    yield "Traceback (most recent call last):"
    for frame in trace.stack:
        yield f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        if frame.line:
            yield f"    {frame.line}"
    yield "".join(trace.format_exception_only()).strip()


def _see_help(error: click.UsageError) -> str:
    return f"see `{error.ctx.command_path if error.ctx else 'bayou'} --help`"


def _sentence(text: str) -> str:
    """Return click's message in the form of Bayou's: one line, no capital, no full stop."""
    line = " ".join(text.split()).rstrip(".")
    return line[:1].lower() + line[1:]


def _is_directory_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _os_hint(number: int) -> str | None:
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "free some space; the same command again goes on from there"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "check who may write there"
    return None


def _flush_or_abandon(stream: TextIO) -> None:
    """Flush; if that fails, redirect to /dev/null, or the interpreter would fail when it flushes at exit."""
    try:
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
