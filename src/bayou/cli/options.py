"""Options and arguments of commands, and what they stand for.

`Common` has the options that every command takes, before or after its name; it opens the repo and makes the output.
`Command` and `Group` are click's, with these options. The functions below are values for `type=` of click, which check
an option before anything is opened; options that several commands share; and the question before a delete.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct, field
from msgspec.structs import replace

from bayou.cli.output import CommandOutput
from bayou.core import activity, limits
from bayou.core.clock import parse_duration
from bayou.core.errors import NotConfirmed, UsageError
from bayou.core.text import visible

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from bayou.config.trust import Ask, Need
    from bayou.repo import Repo
    from bayou.state.connection import Connection


F = TypeVar("F", bound=Callable[..., Any])

yes_option = click.option("yes", "-y", "--yes", is_flag=True, help="Do not ask.")
engine_option = click.option(
    "--engine",
    type=click.Choice(["auto", "point", "spark"]),
    default="auto",
    show_default=True,
    help="Who does the work: this process, or Spark.",
)


_HYPHEN = "\N{NON-BREAKING HYPHEN}"
_WHOLE = 1000
"""No sentence is longer: click would cut it at the width of the terminal."""


class Common(Struct):
    """The options that every command takes: one object for the whole command line."""

    repo: Path | None = None
    json: bool = False
    quiet: bool = False
    verbose: int = 0
    offline: bool = False
    limit_rate: int | None = None
    warnings: list[str] = field(default_factory=list)
    connection: Connection | None = None
    """The open datastore of this process, once a command needs one (`connect`)."""

    @property
    def output(self) -> CommandOutput:
        return CommandOutput(json=self.json, quiet=self.quiet, verbose=self.verbose, warnings=self.warnings)

    @property
    def named_repo(self) -> Path | None:
        """The repo that the user names: `--repo`, else BAYOU_REPO."""
        variable = os.environ.get("BAYOU_REPO")
        return self.repo or (Path(variable) if variable else None)

    @property
    def can_ask(self) -> bool:
        """Whether there is a person at a terminal who can answer a question."""
        return not self.json and sys.stdin.isatty() and sys.stderr.isatty()

    def open_repo(self) -> Repo:
        """Open the repo that the user names, else the nearest one above the current directory."""
        from bayou.repo import find_repo, open_repo  # noqa: PLC0415

        self._show_state_warnings()
        repo = open_repo(find_repo(os.curdir, self.named_repo), offline=self.offline, ask=self._ask())
        if self.limit_rate is not None:
            repo = replace(
                repo, config=replace(repo.config, sync=replace(repo.config.sync, limit_rate=self.limit_rate))
            )
        if repo.links is None:
            self._set_aside_foreign_state(repo)
        return repo

    def connect(self, repo: Repo) -> Connection:
        """Return the open datastore of this command, which passes it to everything that it calls; `close` closes it."""
        if self.connection is None:
            from bayou.state.connection import Connection  # noqa: PLC0415

            self.connection = Connection(repo)
        return self.connection

    def close(self) -> None:
        """Close the datastore, if the command has opened it (V14)."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _ask(self) -> Ask | None:
        """Return the function that asks the user for permission (V23); None without a terminal."""
        if not self.can_ask:
            return None

        def ask(needs: Sequence[Need]) -> bool:
            from bayou.cli.commands.trust import ask  # noqa: PLC0415

            return ask(self.output, needs)

        return ask

    def _show_state_warnings(self) -> None:
        """Print the warning about a damaged database that is set aside as other warnings are printed."""
        from bayou.core.errors import StateSetAside  # noqa: PLC0415

        click.get_current_context().with_resource(warnings.catch_warnings())
        show_other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, StateSetAside):
                self.warnings.append(str(message))
                self.output.notify(f"warning: {message}")
            else:
                show_other(message, category, *rest, **more)

        warnings.simplefilter("always", StateSetAside)
        warnings.showwarning = show

    def _set_aside_foreign_state(self, repo: Repo) -> None:
        """Set aside state that was made on another machine, which is never used (V24), and warn about it."""
        from bayou.config.ownership import set_aside_foreign  # noqa: PLC0415

        moved = set_aside_foreign(repo.local)
        if moved is not None:
            self.output.notify(
                f"warning: {moved.what} is not used; it was moved to {moved.folder.relative_to(repo.root)} "
                "(`bayou trust show` says what it holds)"
            )


class FilePath(click.Path):
    """A path that is not empty: an empty one comes from a variable that is not set, and would mean this directory."""

    def __init__(self, path_type: type[str] | type[Path] = Path) -> None:
        super().__init__(path_type=path_type)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; . is this directory", param, ctx)
        return super().convert(value, param, ctx)


def _set_common(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value and option.name is not None:
        setattr(context.ensure_object(Common), option.name, value)


def _common_options(*, offline: bool) -> list[click.Parameter]:
    def option(*names: str, text: str, **kind: Any) -> click.Parameter:
        return click.Option(names, help=text, expose_value=False, is_eager=True, callback=_set_common, **kind)

    options = [
        option("--repo", type=FilePath(), metavar="DIR", text="The repo, if not the nearest one (or BAYOU_REPO)."),
        option("--json", is_flag=True, text="Print one JSON document."),
        option("-q", "--quiet", is_flag=True, text="Print only results and errors."),
        option("-v", "--verbose", count=True, text="Print more; with an internal error, where it happened."),
    ]
    if offline:
        options.append(option("--offline", is_flag=True, text="Do not contact the store (or BAYOU_OFFLINE=1)."))
    return options


class Name(click.types.StringParamType):
    """The text of an argument that a shell can complete; `what` says with which names (`bayou.cli.completion`)."""

    def __init__(self, what: str) -> None:
        self.what = what

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from bayou.cli.completion import complete  # noqa: PLC0415

        return complete(ctx, self.what, incomplete)


class _Formatter(click.HelpFormatter):
    """Click's, but no line ends inside a name with a hyphen."""

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], *args: Any, **kwargs: Any) -> None:
        super().write_dl([(term, text.replace("-", _HYPHEN)) for term, text in rows], *args, **kwargs)

    def getvalue(self) -> str:
        return super().getvalue().replace(_HYPHEN, "-")


class _Context(click.Context):
    formatter_class = _Formatter


class Command(click.Command):
    """A command with the common options; `writes` adds `--offline`. Its help lists them in a section of their own.

    The help also describes the arguments and has examples; `bayou.cli.examples` has their texts.
    """

    context_class = _Context

    def __init__(self, *args: Any, writes: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings.setdefault("help_option_names", ["-h", "--help"])
        self.common = _common_options(offline=writes)
        self.params.extend(self.common)
        for param in self.params:
            if param.type is click.STRING:
                label = param.opts[0] if isinstance(param, click.Option) else param.metavar or param.name or ""
                param.type = Name(label)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for param in self.params:
            if not isinstance(param.type, click.Path) and _has_surrogate(ctx.params.get(param.name or "")):
                raise click.BadParameter("it is not valid UTF-8", ctx, param)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from bayou.cli.examples import ARGUMENTS  # noqa: PLC0415

        described = ARGUMENTS.get(words_of(ctx), {})
        arguments = [
            (label, described.get(label, ""))
            for param in self.params
            if isinstance(param, click.Argument)
            for label in [argument_label(ctx, param)]
        ]
        own = [
            row
            for option in self.get_params(ctx)
            if isinstance(option, click.Option) and option not in self.common
            if (row := option.get_help_record(ctx))
        ]
        shared = [row for option in self.common if (row := option.get_help_record(ctx))]
        for heading, rows in (("Arguments", arguments), ("Options", own), ("Common options", shared)):
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from bayou.cli.examples import EXAMPLES, command_line  # noqa: PLC0415

        examples = EXAMPLES.get(words_of(ctx), ())
        if examples:
            with formatter.section("Examples"):
                for what, line in examples:
                    margin = " " * formatter.current_indent
                    if what:
                        formatter.write(f"{margin}# {what}\n")
                    formatter.write(f"{margin}{command_line(line)}\n")


def _has_surrogate(value: object) -> bool:
    """Whether a value of the command line has bytes that are not UTF-8; only names of local files may have them."""
    if isinstance(value, tuple):
        return any(map(_has_surrogate, value))
    return isinstance(value, str) and not value.isascii() and any("\udc80" <= char <= "\udcff" for char in value)


def words_of(context: click.Context) -> str:
    """Return the words of a command after `bayou`, which find its texts in `bayou.cli.examples`."""
    names: list[str] = []
    at: click.Context | None = context
    while at is not None and at.parent is not None:
        names.insert(0, at.command.name or "")
        at = at.parent
    return " ".join(names)


def argument_label(context: click.Context, argument: click.Argument) -> str:
    """Return an argument as the usage line has it, without brackets and dots."""
    return argument.make_metavar(context).removesuffix("...").strip("[]")


class Group(Command, click.Group):
    """A group of commands; the group takes the common options too."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, writes=True, **kwargs)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, each with its whole first sentence."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(_WHOLE)) for name, command in found if command and not command.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            from bayou.cli.suggestions import suggest  # noqa: PLC0415

            hint = suggest(ctx, error.command_name) or f"see `{ctx.command_path} --help`"
            raise UsageError(f"no such command {error.command_name!r}", hint=hint) from None


class LazyGroup(Group):
    """A group that imports the module of a command only to run the command.

    `lazy` has for each command the module below `bayou.cli.commands` (and its name there, after a colon, if that is
    another), and the help line, so that `--help` imports none.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, name = self.lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"bayou.cli.commands.{module}"), name or cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])


def duration(text: str) -> float:
    """Read seconds, or a number with one of the units s m h d w."""
    seconds = parse_duration(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r} is no duration: use seconds, or a number with s, m, h, d or w")
    return seconds


def rate(text: str) -> int:
    """Read bytes a second: a number, or one with a unit (500K, 2M, 1MiB)."""
    from bayou.config.load import limit_rate  # noqa: PLC0415

    return limit_rate(text, "--limit-rate")


limit_rate_option = click.option(
    "--limit-rate",
    type=rate,
    metavar="RATE",
    expose_value=False,
    callback=_set_common,
    help="Move at most RATE bytes a second to and from the store (500K, 2M; or BAYOU_SYNC_LIMIT_RATE).",
)


def timeout(text: str) -> float:
    """Read a duration of more than 0 seconds."""
    seconds = duration(text)
    if seconds == 0:
        raise click.BadParameter("it must be more than 0")
    return seconds


def namespace(text: str) -> str:
    """Read a namespace; raise `NamespaceInvalid` before any request (V9)."""
    from bayou.objectstore.keys import check_namespace  # noqa: PLC0415

    return check_namespace(text)


def target(text: str) -> str:
    """Read the URL of a store, which stays as it is, or a directory, which becomes absolute."""
    if "://" in text:
        return text
    if not text:
        raise click.BadParameter("it is empty; . is this directory")
    from bayou.objectstore.url import refuse_broken_url  # noqa: PLC0415

    refuse_broken_url(text)
    return os.path.abspath(os.path.expanduser(text))


def assignment(text: str) -> tuple[str, str]:
    """Read `name=value`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter("it must look like name=value")
    return name, value


def named_once(option: str, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the assignments of an option that may be given several times, but once for each name."""
    named: dict[str, str] = {}
    for name, value in pairs:
        if name in named:
            raise click.UsageError(f"{option} names {name} twice")
        named[name] = value
    return named


def input_options(command: F) -> F:
    """Add `--input NAME=VALUE` and `--input-file FILE` to a command."""
    assignments = click.option(
        "texts",
        "--input",
        type=assignment,
        multiple=True,
        metavar="K=V",
        help="An input; numbers, lists and mappings as JSON.",
    )
    file = click.option("file", "--input-file", type=FilePath(), metavar="FILE", help="Inputs, as YAML or JSON.")
    return assignments(file(command))


def read_input_file(file: Path | None) -> dict[str, Any]:
    """Return the inputs in a YAML or JSON file; none without a file."""
    if file is None:
        return {}
    from bayou.core.documents import Unreadable, read_at_most, read_yaml  # noqa: PLC0415  (`--help` reads none)

    try:
        with file.open("rb") as opened:
            found = read_yaml(read_at_most(opened, limits.DEFINITION_BYTES), limits.DEFINITION_BYTES)
    except Unreadable as error:
        where = f", line {error.line}" if error.line is not None else ""
        raise click.UsageError(f"{file}{where}: {error}") from None
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise click.UsageError(f"{file} is no mapping of names to values")
    return found


def check_can_ask(common: Common, *, yes: bool) -> None:
    """Raise `NotConfirmed` if the command needs a yes, has no `-y`, and cannot ask on a terminal."""
    if not yes and not common.can_ask:
        raise NotConfirmed("this deletes something, and there is no terminal to ask on", hint="say yes with -y")


def confirm(common: Common, question: str, *, yes: bool) -> None:
    """Ask before a delete; raise `NotConfirmed` unless the user answers yes or has passed `-y`."""
    check_can_ask(common, yes=yes)
    if not yes and not says_yes(question):
        raise NotConfirmed("nothing was deleted")


def says_yes(question: str) -> bool:
    """Ask at the terminal, where no progress line stands meanwhile; any answer but yes is a no."""
    with activity.hidden():
        try:
            answer = click.prompt(f"{visible(question)} [y/N]", default="", show_default=False, err=True)
        except click.Abort:
            click.echo(err=True)
            raise
    return str(answer).strip().lower() in ("y", "yes")
