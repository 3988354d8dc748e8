"""Trust: what a cloned repo needs permission for, and what this user has allowed on this machine (V23).

A clone is data: some of its values would send credentials or data to a server, run code, or touch files outside the
repo. Each of them is a `Need`. A user allows the needs of a repo with `bayou trust allow`, or by answering a question
at a terminal; a command that writes such a value (`datastore setup`) allows what it writes.

Bayou keeps the permissions in the user's own folder, never in the repo: one file for each repo, named by the hash of
its real path, with the digest of every allowed value or set of files. A changed value has another digest, and needs a
new permission. `BAYOU_TRUST=1` allows everything for one process: CI runs code of the repo anyway.
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
    """One value or set of files that needs this user's permission: `why` says what it would do."""

    what: What
    where: str
    value: str
    why: str
    digest: str

    @classmethod
    def of(cls, what: What, where: str, value: str, why: str, content: str | None = None) -> Need:
        """Make a need; its digest covers `what`, `where` and the content, which is the value unless given."""
        from hashlib import sha256  # noqa: PLC0415  (only for a repo that needs permission)

        text = json.dumps([what, where, value if content is None else content])
        return cls(what, where, value, why, sha256(text.encode(errors="surrogatepass")).hexdigest())


Ask = Callable[[Sequence[Need]], bool]
"""Ask the user whether to allow these needs; only a caller at a terminal has such a function."""


class Gate(SelectiveStruct, frozen=True):
    """The needs of one part of a repo's configuration. Code that uses that part calls `require` first."""

    uncompared: ClassVar[tuple[str, ...]] = ("passed",)
    unshown: ClassVar[tuple[str, ...]] = ("passed",)

    root: Path
    needs: tuple[Need, ...] = ()
    ask: Ask | None = None
    passed: list[bool] = field(default_factory=list)
    """Not empty once all needs are allowed, so that the gate checks only once."""

    def require(self) -> None:
        """Raise `TrustNeeded` unless this user has allowed every need, earlier or when asked now."""
        if self.passed:
            return
        missing = unallowed(self.root, self.needs)
        if missing:
            if self.ask is None or not self.ask(missing):
                raise trust_error(missing)
            allow(self.root, missing)
        self.passed.append(True)


def trust_error(missing: Sequence[Need]) -> TrustNeeded:
    """Return the error for needs that this user has not allowed."""
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    return TrustNeeded(f"this repo needs your permission: {missing[0].why}{more}", hint=_HINT)


def trusts_all() -> bool:
    """Return whether BAYOU_TRUST allows everything for this process."""
    return is_set(VARIABLE)


def is_set(variable: str, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a variable is yes; empty or unset is no. Raise `ConfigInvalid` if it is neither yes nor no."""
    value = (os.environ if environ is None else environ).get(variable, "").strip().lower()
    if value not in _YES + _NO:
        raise ConfigInvalid(f"{variable} is neither yes nor no: {value!r}", hint="use 1 or 0")
    return value in _YES


def spark_needs(config: SparkConfig) -> tuple[Need, ...]:
    """Return the needs of the [spark] table of a file: any Spark that is not this machine's own."""
    if config.remote is not None:
        why = (
            f"its bayou.toml sends bulk jobs and queries, with the store's credentials and data, "
            f"to the Spark server {config.remote}"
        )
        parameters = config.remote.lower().partition("/")[2].split(";")
        if {parameter for parameter in parameters if parameter.startswith("use_ssl=")} != {"use_ssl=true"}:
            why += ", unencrypted"
        return (Need.of("spark", "bayou.toml: spark.remote", config.remote, why),)
    if config.master is not None and not _is_local_master(config.master):
        why = (
            "its bayou.toml sends bulk jobs and queries, with the store's credentials and data, "
            f"to the Spark cluster {config.master}"
        )
        return (Need.of("spark", "bayou.toml: spark.master", config.master, why),)
    return ()


def datastore_needs(root: Path, datastore: DatastoreConfig, *, lasting: bool = False) -> tuple[Need, ...]:
    """Return the needs of the [datastore] table of a file: other servers, and directories outside the repo.

    `lasting` includes the directory of a store that needs no permission now, but will once it contains files.
    """
    found: list[Need] = []
    if datastore.url is not None and datastore.options:
        from bayou.objectstore.url import OPTIONS, custom_endpoint, parse_url  # noqa: PLC0415

        scheme = parse_url(datastore.url).scheme
        server = custom_endpoint(scheme, datastore.options)
        if scheme not in OPTIONS:
            # Only a plug-in itself knows which of its options decide where it sends credentials.
            value = ", ".join(f"{name}={text}" for name, text in sorted(datastore.options.items()))
            why = (
                f"its bayou.toml tells the plugged-in store {datastore.url} where to send data and credentials: {value}"
            )
            found.append(Need.of("endpoint", "bayou.toml: datastore.options", value, why, f"{datastore.url} {value}"))
        elif server is not None:
            name = "endpoint" if "endpoint" in datastore.options else "use_emulator"
            plain = ", unencrypted" if server.clear_text else ""
            there = f"{server.address}{plain}"
            why = f"its bayou.toml sends data, and your credentials for {datastore.url}, to the server {there}"
            # The URL is part of the content: its scheme decides whose credentials the server gets.
            where, content = f"bayou.toml: datastore.options.{name}", f"{datastore.url} {server.address}"
            found.append(Need.of("endpoint", where, server.address, why, content))
    if datastore.path is not None:
        target = Path(os.path.realpath(root / Path(datastore.path).expanduser()))
        if not target.is_relative_to(os.path.realpath(root)):
            why = f"its bayou.toml keeps data in a directory outside the repo: it reads, writes and deletes in {target}"
            found.append(Need.of("directory", "bayou.toml: datastore.path", datastore.path, why, str(target)))
    if datastore.url is not None:
        found += _file_store(root, datastore, datastore.url, lasting=lasting)
    return tuple(found)


def link_needs(root: Path) -> tuple[Need, ...]:
    """Return the needs of links in `.bayou/` that lead out of the repo: Git keeps links."""
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
    """Return the need of the code in `extensions/`, all files taken together."""
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
    """Return whether a path of a repo, and each directory above it, is a directory and not a link."""
    parts = path.split("/")
    return all(_is_directory(root / "/".join(parts[: length + 1])) for length in range(len(parts)))


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _extension_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every entry of `extensions/`: the bytes of a file, the target of a link.

    Neither this function nor the loader (`bayou.models.types.registry`) follows links or reads `__pycache__`.
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


def _file_store(root: Path, datastore: DatastoreConfig, url: str, *, lasting: bool) -> Iterable[Need]:
    """Return a need for a `file://` store in a directory outside the repo that contains other files.

    A directory that is already a store is shared on purpose, like a bucket; an empty or missing directory contains no
    files that Bayou could damage.
    """
    if ":" not in url or url.strip().partition(":")[0].lower() != "file":
        return ()
    from bayou.objectstore.url import parse_url  # noqa: PLC0415

    parsed = parse_url(url)
    target = Path(os.path.realpath(Path(parsed.bucket, parsed.prefix, datastore.namespace or "")))
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
        return False  # opening the store reports the error


def _is_local_master(master: str) -> bool:
    """Return whether Spark runs inside the server that Bayou starts on this machine; `local-cluster` does not."""
    import re  # noqa: PLC0415

    return re.fullmatch(r"local(\[[0-9*, ]+\])?", master) is not None


def user_folder() -> Path:
    """Return this user's own folder for Bayou's settings: `$XDG_CONFIG_HOME/bayou`, else `~/.config/bayou`."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(home):
        return Path(home, "bayou")
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
    """Return the permissions of a repo by digest; none if their file is missing or invalid."""
    file = _permissions_file(root)
    if lies_in(file, root):
        return {}  # the file may come from the clone
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
    """Record that this user allows these needs of the repo at `root`, in addition to earlier permissions."""
    new = {
        need.digest: {"what": need.what, "where": need.where, "value": need.value, "at": now("seconds")}
        for need in needs
    }
    if not new:
        return
    allowed = read_allowed(root)
    if new.keys() <= allowed.keys():
        return
    file = _permissions_file(root)
    if lies_in(file, root):
        raise TrustNeeded(
            f"permissions cannot be kept in {file.parent}: it lies in the repo itself",
            hint=f"set XDG_CONFIG_HOME to a directory outside of it, or {VARIABLE}=1 for this command",
        )
    document = {"repo": os.path.realpath(root), "allowed": {**allowed, **new}}
    _write(file, json.dumps(document, indent=2))


def revoke(root: Path) -> bool:
    """Remove all permissions of the repo at `root`; return whether there were any."""
    try:
        _permissions_file(root).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise TrustNeeded(f"cannot forget what was allowed: {error.strerror}: {_permissions_file(root)}") from None
    return True


def make_private(folder: Path) -> None:
    """Create a directory, and those above it, that only this user can enter."""
    for directory in reversed([folder, *folder.parents]):
        if not directory.is_dir():
            os.makedirs(directory, mode=0o700, exist_ok=True)


def write_private(file: Path, *lines: str) -> None:
    """Write a small file atomically that only this user can read; a line may be a path, which need not be UTF-8."""
    write_file(file, os.fsencode("".join(f"{line}\n" for line in lines)), mode=0o600)


def _write(file: Path, text: str) -> None:
    try:
        make_private(file.parent)
        write_private(file, text)
    except OSError as error:
        raise TrustNeeded(
            f"cannot remember what was allowed: {error.strerror}: {error.filename}",
            hint=f"make it writable, set XDG_CONFIG_HOME to another directory, or {VARIABLE}=1 for this command",
        ) from None


def _permissions_file(root: Path) -> Path:
    from hashlib import sha256  # noqa: PLC0415

    name = sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
    return user_folder() / "trust" / f"{name}.json"


def lies_in(path: Path, root: Path) -> bool:
    """Return whether a path lies in a directory, once all links are followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
