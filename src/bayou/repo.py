"""A repo: a directory with `bayou.toml`, and where everything in it lies (docs/design.md, section 2)."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from bayou.config import Config, load_config, parse_config, told_offline, write_file
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
    """An open repo: its place, its configuration, and whether it must leave the store alone."""

    uncompared: ClassVar[tuple[str, ...]] = ("links", "ask")
    unshown: ClassVar[tuple[str, ...]] = ("links", "ask")

    root: Path
    config: Config
    offline: bool = False
    runs_code: bool = False
    """Whether the user asked for something that runs this repo's own code, and so allows that."""
    links: Gate | None = None
    """What of `.bayou/` leads out of the repo."""
    ask: Ask | None = None

    @property
    def file(self) -> Path:
        """The configuration file."""
        return self.root / MARKER

    @property
    def state(self) -> Path:
        """What this machine knows of the datastore. Never inside the tree, so it is never synced (V8)."""
        return own_state(self.local)  # V24

    @property
    def local(self) -> Path:
        """The directory of everything that is this machine's; `TrustNeeded` if it leads out of the repo (V23)."""
        if self.links is not None:
            self.links.require()
        return self.root / LOCAL

    @property
    def catalog(self) -> Path:
        """The database of what data there is: derived, so one that came from elsewhere is not believed (V24)."""
        return own_catalog(self.local)

    @property
    def conflicts(self) -> Path:
        """Copies that were kept when two sides changed one path."""
        return self.local / "conflicts"

    @property
    def tree_root(self) -> Path:
        """The directory of payload: the cache of a store, or the directory that is the datastore."""
        path = self.config.datastore.path
        if path is None:
            return self.local / "tree"
        self.config.datastore.require_trust()
        return self.root / Path(path).expanduser()

    def running(self) -> Repo:
        """Return this repo for a command that runs what its definitions say: whoever types that allows it (V23)."""
        return replace(self, runs_code=True)

    def require_extensions(self) -> None:
        """Raise `TrustNeeded` unless this user allows the code of `extensions/` to be loaded (V23)."""
        if not self.runs_code:
            Gate(self.root, extension_needs(self.root), self.ask).require()

    def store(self) -> Store:
        """Open the configured store; `UsageError` where there is none, `Offline` offline. No request is sent.

        This is the only way from a repo to its store, so that nothing goes around `--offline` and BAYOU_OFFLINE.
        """
        place = self.config.datastore
        if place.url is None:
            raise UsageError(
                f"there is no store to talk to: the datastore is the directory {self.tree_root}",
                hint="name one with `bayou datastore setup URL`",
            )
        self.require_online("the store is not to be contacted")
        place.require_trust()
        from bayou.objectstore import open_store  # noqa: PLC0415

        return open_store(
            place.url, namespace=place.namespace, options=place.options, concurrency=self.config.sync.concurrency
        )

    def require_online(self, why: str) -> None:
        """Raise `Offline` for work that makes no sense without the store, before anything of it is done."""
        if self.offline:
            raise Offline(f"offline: {why}", hint="leave out --offline, and unset BAYOU_OFFLINE")


def leads_out(root: Path, path: str) -> bool:
    """Say whether a path of a repo leads out of it, through a link: Git keeps links, and a clone is data (V23)."""
    return not Path(os.path.realpath(root / path)).is_relative_to(os.path.realpath(root))


def find_repo(start: str | os.PathLike[str], explicit: str | os.PathLike[str] | None = None) -> Path:
    """Return the root of a repo: `explicit` if given, and no other, else the nearest that `start` lies in."""
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
    """Open the repo that `path` is, or lies in, as the environment has it (`BAYOU_…`).

    What the repo needs this user's permission for is asked with `ask`, when it is first used; without, it is an error.
    """
    root = find_repo(path)
    config = load_config(root / MARKER, ask=ask)
    links = link_needs(root)
    return Repo(root, config, offline or told_offline(), links=Gate(root, links, ask) if links else None, ask=ask)


def init_repo(directory: str | os.PathLike[str] = ".") -> Repo:
    """Make a directory a repo; `AlreadyInitialized`, and nothing changed, if it is one.

    V19: the marker comes last, so whatever a crash leaves behind, the same call again completes it.
    """
    root = Path(os.path.abspath(directory))
    if os.path.lexists(root / MARKER):
        raise _already(root)
    text = _TEMPLATE.format(repo_id=uuid.uuid4())
    repo = Repo(root, parse_config(text, MARKER, os.environ), told_offline())  # a bad environment changes nothing
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
        raise _already(root) from None
    return repo


def _already(root: Path) -> AlreadyInitialized:
    return AlreadyInitialized(f"{root} is a Bayou repo already", hint="see it with `bayou datastore status`")
