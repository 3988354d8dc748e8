"""A repo: a directory with `bayou.toml`, and the layout of its files (docs/design.md, section 2)."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from bayou.config import Config, load_config, offline_requested, parse_config, write_file
from bayou.config.ownership import own_catalog, own_state
from bayou.config.trust import Ask, Gate, extension_needs, link_needs, write_private
from bayou.core.errors import AlreadyInitialized, NotARepo, Offline, UsageError
from bayou.core.structs import SelectiveStruct

if TYPE_CHECKING:
    from bayou.objectstore import Store

MARKER = "bayou.toml"
LOCAL = ".bayou"

_TEMPLATE = """\
# This directory is a Bayou repo. Commit this file, models/ and workflows/.
# Credentials never stand here: they come from your provider's own environment, profile or login.
repo_id = "{repo_id}"

# Runtime data lives in .bayou/tree, on this machine only, until you share it through a bucket or a directory:
#   bayou datastore setup s3://team-bucket/project      (or gs://, az://, file:///mnt/shared/project)
[datastore]
"""


class Repo(SelectiveStruct, frozen=True):
    """An open repo: its root, its configuration, and whether it may contact the store."""

    uncompared: ClassVar[tuple[str, ...]] = ("links", "ask")
    unshown: ClassVar[tuple[str, ...]] = ("links", "ask")

    root: Path
    config: Config
    offline: bool = False
    runs_code: bool = False
    """Whether the user's command runs this repo's own code; typing it allows that (V23)."""
    links: Gate | None = None
    """The gate of links in `.bayou/` that lead out of the repo."""
    ask: Ask | None = None

    @property
    def file(self) -> Path:
        """The configuration file."""
        return self.root / MARKER

    @property
    def state(self) -> Path:
        """This machine's state of the datastore. It is never inside the tree, so it is never synced (V8)."""
        return own_state(self.local)  # V24

    @property
    def local(self) -> Path:
        """The directory of all local state; raise `TrustNeeded` if it leads out of the repo (V23)."""
        if self.links is not None:
            self.links.require()
        return self.root / LOCAL

    @property
    def catalog(self) -> Path:
        """The database of existing data. It is derived, so a foreign catalog is set aside (V24)."""
        return own_catalog(self.local)

    @property
    def conflicts(self) -> Path:
        """The directory of copies that were kept when two sides changed one path."""
        return self.local / "conflicts"

    @property
    def tree_root(self) -> Path:
        """The directory of payload: the cache of a store, or the directory datastore itself."""
        path = self.config.datastore.path
        if path is None:
            return self.local / "tree"
        self.config.datastore.require_trust()
        return self.root / Path(path).expanduser()

    def running(self) -> Repo:
        """Return this repo for a command that runs its definitions; the user who types it allows that (V23)."""
        return replace(self, runs_code=True)

    def require_extensions(self) -> None:
        """Raise `TrustNeeded` unless this user allows Bayou to load the code of `extensions/` (V23)."""
        if not self.runs_code:
            Gate(self.root, extension_needs(self.root), self.ask).require()

    def store(self) -> Store:
        """Open the configured store without a request; raise `UsageError` if there is none, and `Offline` offline.

        This is the only way from a repo to its store, so that no code ignores `--offline` and BAYOU_OFFLINE.
        """
        datastore = self.config.datastore
        if datastore.url is None:
            raise UsageError(
                f"there is no store to talk to: the datastore is the directory {self.tree_root}",
                hint="name one with `bayou datastore setup URL`",
            )
        self.require_online("the store is not to be contacted")
        datastore.require_trust()
        from bayou.objectstore import open_store  # noqa: PLC0415

        return open_store(
            datastore.url,
            namespace=datastore.namespace,
            options=datastore.options,
            concurrency=self.config.sync.concurrency,
            limit_rate=self.config.sync.limit_rate,
        )

    def require_online(self, why: str) -> None:
        """Raise `Offline` for work that needs the store; call it before the work begins."""
        if self.offline:
            raise Offline(f"offline: {why}", hint="leave out --offline, and unset BAYOU_OFFLINE")


def leads_out(root: Path, path: str) -> bool:
    """Return whether a link makes a path of a repo lead out of it: Git keeps links, and a clone is data (V23)."""
    return not Path(os.path.realpath(root / path)).is_relative_to(os.path.realpath(root))


def find_repo(start: str | os.PathLike[str], explicit: str | os.PathLike[str] | None = None) -> Path:
    """Return the root of a repo: exactly `explicit` if given, else the nearest repo that contains `start`."""
    if explicit is not None:
        root = Path(os.path.abspath(explicit))
        if not (root / MARKER).is_file():
            raise NotARepo(f"{root} is not a Bayou repo: it has no {MARKER}", hint="make it one with `bayou init DIR`")
        return root
    directory = Path(os.path.abspath(start))
    for root in (directory, *directory.parents):
        if (root / MARKER).is_file():
            return root
    raise NotARepo(f"{directory} is not in a Bayou repo: no {MARKER} here or above", hint="make one with `bayou init`")


def open_repo(path: str | os.PathLike[str] = ".", *, offline: bool = False, ask: Ask | None = None) -> Repo:
    """Open the repo that `path` is, or is inside of, with the environment (`BAYOU_…`) applied.

    When a part of the repo that needs this user's permission is first used, `ask` asks the user; without `ask`, that
    raises `TrustNeeded`.
    """
    root = find_repo(path)
    config = load_config(root / MARKER, ask=ask)
    links = link_needs(root)
    return Repo(root, config, offline or offline_requested(), links=Gate(root, links, ask) if links else None, ask=ask)


def init_repo(directory: str | os.PathLike[str] = ".") -> Repo:
    """Make a directory a repo; raise `AlreadyInitialized`, and change nothing, if it is one already.

    V19: the marker comes last, so after a crash the same call completes the repo.
    """
    root = Path(os.path.abspath(directory))
    if os.path.lexists(root / MARKER):
        raise _already_initialized(root)
    text = _TEMPLATE.format(repo_id=uuid.uuid4())
    repo = Repo(root, parse_config(text, MARKER, os.environ), offline_requested())  # a bad environment changes nothing
    try:
        for name in ("models", "workflows"):
            (root / name).mkdir(parents=True, exist_ok=True)
        (root / LOCAL).mkdir(mode=0o700, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{error.filename} is in the way: not a directory", hint="choose another place") from None
    ignore = root / LOCAL / ".gitignore"
    if not ignore.exists():
        write_private(ignore, "*")
    try:
        write_file(repo.file, text, create=True)
    except FileExistsError:
        raise _already_initialized(root) from None
    return repo


def _already_initialized(root: Path) -> AlreadyInitialized:
    return AlreadyInitialized(f"{root} is a Bayou repo already", hint="see it with `bayou datastore status`")
