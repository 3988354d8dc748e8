"""What a cloned repo asks for, and what this user has allowed on this machine (V23).

A clone is data: some of its values would send credentials or data somewhere, run code, or touch files outside the
repo. Each of them is a `Need`. A user allows the needs of a repo with `bayou trust allow`, or by answering a question
at a terminal; a command that writes such a value (`datastore setup`) allows what it writes.

Permissions lie in the user's own folder, never in the repo: one file for each repo, named by the hash of its real path,
with the digest of every value or set of files that was allowed. Another value has another digest, and is asked about
anew. `BAYOU_TRUST=1` allows everything for one process: CI runs code of the repo anyway.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from msgspec import Struct, field

from bayou.core import limits
from bayou.core.atomic_file import write_file
from bayou.core.clock import now
from bayou.core.documents import Unreadable, read_json
from bayou.core.errors import ConfigInvalid, TrustNeeded
from bayou.core.structs import SelectiveStruct
from bayou.core.text import first_names

if TYPE_CHECKING:
    from bayou.config.settings import DatastoreConfig, SparkConfig

What = Literal["spark", "endpoint", "directory", "extensions", "state"]

EXTENSIONS = "extensions"
VARIABLE = "BAYOU_TRUST"
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")
_MAX_FILES = 10_000
_MAX_FILE_BYTES = 64 * limits.MIB
_HINT = "look at it with `bayou trust show`; allow it on this machine with `bayou trust allow`"


class Need(Struct, frozen=True):
    """One thing that needs this user's permission: what it is, where it stands, and what it would do."""

    what: What
    where: str
    value: str
    why: str
    digest: str

    @classmethod
    def of(cls, what: What, where: str, value: str, why: str, content: str | None = None) -> Need:
        """Make a need; its digest covers `what`, `where` and the content, which is the value unless given."""
        from hashlib import sha256  # noqa: PLC0415  (only for what needs permission)

        text = json.dumps([what, where, value if content is None else content])
        return cls(what, where, value, why, sha256(text.encode(errors="surrogatepass")).hexdigest())


Ask = Callable[[Sequence[Need]], bool]
"""Ask a person whether these needs are allowed; only a caller at a terminal has one."""


class Gate(SelectiveStruct, frozen=True):
    """The needs of one part of a repo's configuration. Code that uses that part calls `require` first."""

    uncompared: ClassVar[tuple[str, ...]] = ("passed",)
    unshown: ClassVar[tuple[str, ...]] = ("passed",)

    root: Path
    needs: tuple[Need, ...] = ()
    ask: Ask | None = None
    passed: list[bool] = field(default_factory=list)
    """Not empty once everything was found to be allowed: it is looked up once."""

    def require(self) -> None:
        """Return if this user has allowed every need, now or before; else raise `TrustNeeded`."""
        if self.passed:
            return
        missing = unallowed(self.root, self.needs)
        if missing:
            if self.ask is None or not self.ask(missing):
                raise needed(missing)
            allow(self.root, missing)
        self.passed.append(True)


def needed(missing: Sequence[Need]) -> TrustNeeded:
    """Return the error for needs that this user has not allowed; it says what would happen."""
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    return TrustNeeded(f"this repo needs your permission: {missing[0].why}{more}", hint=_HINT)


def trusts_all(environ: Mapping[str, str] | None = None) -> bool:
    """Say whether BAYOU_TRUST allows everything for this process."""
    return is_set(VARIABLE, environ)


def is_set(variable: str, environ: Mapping[str, str] | None = None) -> bool:
    """Say whether a variable says yes; `ConfigInvalid` if neither yes nor no. An empty one is as good as none."""
    told = (os.environ if environ is None else environ).get(variable, "").strip().lower()
    if told not in _YES + _NO:
        raise ConfigInvalid(f"{variable} is neither yes nor no: {told!r}", hint="use 1 or 0")
    return told in _YES


# ---- what a repo asks for ----


def spark_needs(config: SparkConfig) -> tuple[Need, ...]:
    """Return what needs permission in the [spark] table of a file: whatever is not this machine's own Spark."""
    if config.remote is not None:
        why = (
            f"its bayou.toml sends bulk jobs and queries, with the store's credentials and data, "
            f"to the Spark server {config.remote}"
        )
        told = {part for part in config.remote.lower().partition("/")[2].split(";") if part.startswith("use_ssl=")}
        if told != {"use_ssl=true"}:
            why += ", unencrypted"
        return (Need.of("spark", "bayou.toml: spark.remote", config.remote, why),)
    if config.master is not None and not _is_local_master(config.master):
        why = (
            "its bayou.toml sends bulk jobs and queries, with the store's credentials and data, "
            f"to the Spark cluster {config.master}"
        )
        return (Need.of("spark", "bayou.toml: spark.master", config.master, why),)
    return ()


def datastore_needs(root: Path, place: DatastoreConfig, *, lasting: bool = False) -> tuple[Need, ...]:
    """Return what needs permission in the [datastore] table of a file: other servers, directories outside the repo.

    `lasting`: also what needs none today, and will once the directory of a store has files in it.
    """
    found: list[Need] = []
    if place.url is not None and place.options:
        from bayou.objectstore.url import OPTIONS, custom_endpoint, parse_url  # noqa: PLC0415

        scheme = parse_url(place.url).scheme
        server = custom_endpoint(scheme, place.options)
        if scheme not in OPTIONS:
            # A plugged-in store: it alone knows which of its options say where it sends credentials.
            value = ", ".join(f"{name}={text}" for name, text in sorted(place.options.items()))
            why = f"its bayou.toml tells the plugged-in store {place.url} where to send data and credentials: {value}"
            found.append(Need.of("endpoint", "bayou.toml: datastore.options", value, why, f"{place.url} {value}"))
        elif server is not None:
            name = "endpoint" if "endpoint" in place.options else "use_emulator"
            plain = ", unencrypted" if server.clear_text else ""
            there = f"{server.address}{plain}"
            why = f"its bayou.toml sends data, and your credentials for {place.url}, to the server {there}"
            # The URL belongs to it: its scheme says whose credentials go there.
            where, content = f"bayou.toml: datastore.options.{name}", f"{place.url} {server.address}"
            found.append(Need.of("endpoint", where, server.address, why, content))
    if place.path is not None:
        target = Path(os.path.realpath(root / Path(place.path).expanduser()))
        if not target.is_relative_to(os.path.realpath(root)):
            why = f"its bayou.toml keeps data in a directory outside the repo: it reads, writes and deletes in {target}"
            found.append(Need.of("directory", "bayou.toml: datastore.path", place.path, why, str(target)))
    if place.url is not None:
        found += _file_store(root, place, place.url, lasting=lasting)
    return tuple(found)


def link_needs(root: Path) -> tuple[Need, ...]:
    """Return what needs permission because part of `.bayou/` is a link out of the repo: Git keeps links."""
    inside = os.path.realpath(root)
    found = []
    for name in (".bayou", ".bayou/tree", ".bayou/state", ".bayou/conflicts"):
        if os.path.islink(root / name):
            target = Path(os.path.realpath(root / name))
            if not target.is_relative_to(inside):
                why = f"its {name} is a link out of the repo: data is read, written and deleted in {target}"
                found.append(Need.of("directory", name, str(target), why))
    return tuple(found)


def extension_needs(root: Path) -> tuple[Need, ...]:
    """Return what needs permission because it is code: the files of `extensions/`, taken together."""
    found = list(_extension_files(root))
    if not found:
        return ()
    from hashlib import sha256  # noqa: PLC0415

    digest = sha256()
    for name, data in sorted(found):
        encoded = os.fsencode(name)
        digest.update(len(encoded).to_bytes(8, "big") + encoded + len(data).to_bytes(8, "big") + data)
    names = sorted(name for name, _ in found)
    value = first_names(names, 5)
    why = f"its {EXTENSIONS}/ has Python code ({value}), which would run to see what types of models it has"
    return (Need.of("extensions", f"{EXTENSIONS}/", value, why, digest.hexdigest()),)


def is_plain_directory(root: Path, path: str) -> bool:
    """Say whether a directory of a repo, and each above it, is one itself and no link to one."""
    parts = path.split("/")
    return all(_is_directory(root / "/".join(parts[: length + 1])) for length in range(len(parts)))


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _extension_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of everything in `extensions/`: the bytes of a file, the target of a link.

    Links are not followed, here or by the loader (`model/types/extensions.py`), which reads no `__pycache__` either.
    """
    count = total = 0
    folders = [EXTENSIONS] if is_plain_directory(root, EXTENSIONS) else []
    while folders:
        folder = folders.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}"
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        folders.append(name)
                    continue
                data = _content(entry)
                total += len(data)
                if count > _MAX_FILES or total > _MAX_FILE_BYTES:
                    raise ConfigInvalid(f"{EXTENSIONS}/ is too large to be looked through", hint="keep only code in it")
                yield name, data


def _content(entry: os.DirEntry[str]) -> bytes:
    try:
        if entry.is_symlink():
            return b"link to " + os.fsencode(os.readlink(entry.path))
        if not entry.is_file(follow_symlinks=False):
            return b"no file"
        with open(os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            return opened.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        return f"cannot be read: {error.strerror}".encode()


def _file_store(root: Path, place: DatastoreConfig, url: str, *, lasting: bool) -> Iterable[Need]:
    """Return a need for a `file://` store that would be made among files outside the repo.

    A directory that is a store already is shared on purpose, as a bucket is; an empty or missing one holds nothing of
    anybody's.
    """
    if ":" not in url or url.strip().partition(":")[0].lower() != "file":
        return ()
    from bayou.objectstore.url import parse_url  # noqa: PLC0415

    there = parse_url(url)
    target = Path(os.path.realpath(Path(there.bucket, there.prefix, place.namespace or "")))
    if target.is_relative_to(os.path.realpath(root)) or (not lasting and _is_store_or_empty(target)):
        return ()
    why = f"its bayou.toml makes a store of a directory outside the repo: it reads, writes and deletes in {target}"
    return (Need.of("directory", "bayou.toml: datastore.url", url, why, str(target)),)


def _is_store_or_empty(target: Path) -> bool:
    try:
        return (target / ".bayou" / "head.json").is_file() or all(
            name.startswith(".bayou") for name in os.listdir(target)
        )
    except FileNotFoundError:
        return True
    except OSError:
        return False  # whatever it is, the store says so when it is opened


def _is_local_master(master: str) -> bool:
    """Whether Spark runs inside the server that Bayou starts on this machine; `local-cluster` starts others."""
    import re  # noqa: PLC0415

    return re.fullmatch(r"local(\[[0-9*, ]+\])?", master) is not None


# ---- what this user has allowed ----


def user_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return this user's own folder for Bayou's settings: `$XDG_CONFIG_HOME/bayou`, else `~/.config/bayou`."""
    told = (os.environ if environ is None else environ).get("XDG_CONFIG_HOME", "")
    if os.path.isabs(told):
        return Path(told, "bayou")
    try:
        return Path.home() / ".config" / "bayou"
    except RuntimeError:  # no HOME, and no such user
        raise TrustNeeded(
            "there is no home directory to keep permissions in",
            hint=f"set XDG_CONFIG_HOME to a directory, or {VARIABLE}=1 for this command",
        ) from None


def unallowed(root: Path, needs: Sequence[Need]) -> list[Need]:
    """Return the needs that this user has not allowed for the repo at `root`."""
    if not needs or trusts_all():
        return []
    allowed = read_allowed(root)
    return [need for need in needs if need.digest not in allowed]


def read_allowed(root: Path) -> dict[str, dict[str, str]]:
    """Return what was allowed for a repo, by digest; nothing where the file is missing, or is none of ours."""
    file = _file(root)
    if _lies_in(file, root):
        return {}  # the clone brought it along
    try:
        with open(file, "rb") as opened:
            found = read_json(opened.read(limits.CONFIG_BYTES + 1), limits.CONFIG_BYTES)
    except (OSError, Unreadable):
        return {}
    if not isinstance(found, dict) or found.get("repo") != os.path.realpath(root):
        return {}
    allowed = found.get("allowed")
    return allowed if isinstance(allowed, dict) else {}


def allow(root: Path, needs: Iterable[Need]) -> None:
    """Remember that this user allows these needs of the repo at `root`, besides those that were allowed before."""
    new = {
        need.digest: {"what": need.what, "where": need.where, "value": need.value, "at": now("seconds")}
        for need in needs
    }
    if not new:
        return
    allowed = read_allowed(root)
    if new.keys() <= allowed.keys():
        return
    file = _file(root)
    if _lies_in(file, root):
        raise TrustNeeded(
            f"permissions cannot be kept in {file.parent}: it lies in the repo itself",
            hint=f"set XDG_CONFIG_HOME to a directory outside of it, or {VARIABLE}=1 for this command",
        )
    document = {"repo": os.path.realpath(root), "allowed": {**allowed, **new}}
    _write(file, json.dumps(document, indent=2))


def revoke(root: Path) -> bool:
    """Forget whatever was allowed for the repo at `root`; say whether anything was."""
    try:
        _file(root).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise TrustNeeded(f"cannot forget what was allowed: {error.strerror}: {_file(root)}") from None
    return True


def make_private(folder: Path) -> None:
    """Create a directory, and those above it, that only this user can enter."""
    for one in reversed([folder, *folder.parents]):
        if not one.is_dir():
            os.makedirs(one, mode=0o700, exist_ok=True)


def write_private(file: Path, *lines: str) -> None:
    """Write a small file that only this user can read, whole or not at all."""
    write_file(file, "".join(f"{line}\n" for line in lines).encode(), mode=0o600)


def _write(file: Path, text: str) -> None:
    try:
        make_private(file.parent)
        write_private(file, text)
    except OSError as error:
        raise TrustNeeded(
            f"cannot remember what was allowed: {error.strerror}: {error.filename}",
            hint=f"make it writable, set XDG_CONFIG_HOME to another directory, or {VARIABLE}=1 for this command",
        ) from None


def _file(root: Path) -> Path:
    from hashlib import sha256  # noqa: PLC0415

    name = sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
    return user_folder() / "trust" / f"{name}.json"


def _lies_in(path: Path, root: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
