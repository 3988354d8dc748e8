"""The keys of a store: how Bayou names and parses them, and the scope that bounds them (V9).

A `Key` is relative to its store's prefix and namespace; only this package makes a `Key` from a string. A `KeyScope` is
the prefix and namespace, which are fixed when the store is created.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NewType
from urllib.parse import quote, unquote

from msgspec import Struct

from bayou.core import paths
from bayou.core.errors import ConfigInvalid, NamespaceInvalid, Rejected

Key = NewType("Key", str)

INTERNAL = ".bayou"
HEAD = Key(".bayou/head.json")
NODES = Key(".bayou/nodes")
LOGS = Key(".bayou/log")
PACKS = Key(".bayou/packs")
LEASES = Key(".bayou/leases")
PROBES = Key(".bayou/probe")
REPLICATING = Key(".bayou/replicating.json")

_PUSH = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_NODE = re.compile(r"([0-9a-f]{64})-([0-9A-Za-z-]{1,64})\.parquet")
_PACK = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}-([1-9][0-9]{0,14})")
_PAGE = re.compile(r"[0-9A-Za-z-]{1,64}\.json")
_SLUG = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_MAX_NAMESPACE = 64
_FORBIDDEN = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)|[\x00-\x1f\x7f]")
"""Matches what no key may contain: an empty segment, `.` or `..` (clients and servers drop or resolve these, so the key
would name another object), and control characters, which obstore cannot send."""


class PayloadKey(NamedTuple):
    """The path of a payload object, and the push that wrote it (None: the object existed before Bayou)."""

    path: str
    push: str | None


def is_push_id(text: str) -> bool:
    return _PUSH.fullmatch(text) is not None


def is_push_segment(segment: str) -> bool:
    """Return whether a path segment is the directory of a push: `~` and a ULID."""
    return segment.startswith("~") and is_push_id(segment[1:])


def as_listed(key: str) -> Key:
    """Return the key of an object that this store's own listing named."""
    return Key(key)


def payload(path: str, push: str | None) -> Key:
    """Return the key of an entry's object: its path, with the push's id as the last directory (V11)."""
    if push is None:
        return Key(path)
    directory, _, name = path.rpartition("/")
    return Key(f"{directory}/~{push}/{name}")


def parse_payload(key: str) -> PayloadKey:
    """Parse a payload key; the path is unchecked and may be unsafe."""
    if "/~" not in key:  # hot: a listing parses every key
        return PayloadKey(key, None)
    directory, _, name = key.rpartition("/")
    parent, _, last = directory.rpartition("/")
    if parent and is_push_segment(last):
        return PayloadKey(f"{parent}/{name}", last[1:])
    return PayloadKey(key, None)


def node(name: str) -> Key:
    """Return the key of an index node; `name` is `<digest>-<commit>`."""
    return Key(f"{NODES}/{name}.parquet")


def parse_node(key: str) -> str | None:
    """Return the name of the node that a key names, or None for any other key."""
    directory, _, last = key.rpartition("/")
    if directory != NODES or not _NODE.fullmatch(last):
        return None
    return last.removesuffix(".parquet")


def pack(name: str) -> Key:
    """Return the key of a pack; `name` is `<ULID>-<size in bytes>`."""
    return Key(f"{PACKS}/{name}.zip")


def parse_pack(key: str) -> str | None:
    """Return the name of the pack that a key names, or None for any other key."""
    directory, _, last = key.rpartition("/")
    name = last.removesuffix(".zip")
    return name if directory == PACKS and name != last and pack_bytes(name) is not None else None


def pack_bytes(name: str) -> int | None:
    """Return the size that a pack's name says, or None if the text is not the name of a pack."""
    found = _PACK.fullmatch(name)
    return int(found[1]) if found is not None else None


def log_page(page: str) -> Key:
    return Key(f"{LOGS}/{page}.json")


def parse_log_page(key: str) -> str | None:
    """Return the id of the log page that a key names, or None for any other key."""
    directory, _, last = key.rpartition("/")
    return last.removesuffix(".json") if directory == LOGS and _PAGE.fullmatch(last) else None


def lease(name: str) -> Key:
    """Return the key of a lease; its name may be any text."""
    # A name from the command line may hold bytes that are not UTF-8, which Python represents as surrogates.
    return Key(f"{LEASES}/{quote(name, safe='@', errors='surrogateescape')}.json")


def parse_lease(key: str) -> str | None:
    directory, _, last = key.rpartition("/")
    if directory != LEASES or not last.endswith(".json"):
        return None
    return unquote(last.removesuffix(".json"), errors="surrogateescape")


def probe(name: str) -> Key:
    return Key(f"{PROBES}/{name}")


def is_probe(key: str) -> bool:
    """Return whether a key is that of a probe, whose name is a ULID."""
    directory, _, last = key.rpartition("/")
    return directory == PROBES and is_push_id(last)


def check_namespace(name: str) -> str:
    """Return a valid namespace, or raise `NamespaceInvalid`."""
    hint = "use a-z, 0-9 and inner dashes, at most 64 characters, and not the name of a payload root"
    if not _SLUG.fullmatch(name) or len(name) > _MAX_NAMESPACE:
        raise NamespaceInvalid(f"not a namespace: {name!r}", hint=hint)
    if name in paths.PAYLOAD_ROOTS:
        raise NamespaceInvalid(f"{name!r} is the name of a payload root, so it cannot be a namespace", hint=hint)
    return name


def check_prefix(prefix: str) -> str:
    """Return a prefix without leading and trailing slashes; raise `ConfigInvalid` if it is not a plain directory."""
    bare = prefix.strip("/")
    if bare and (why := paths.unsafe(bare)):
        raise ConfigInvalid(f"bad prefix {prefix!r} in the store's URL: {why}", hint="use plain names separated by /")
    return bare


class KeyScope(Struct, frozen=True):
    """The part of a bucket that a store may use; `full` and `relative` convert keys between store and bucket."""

    prefix: str
    namespace: str | None
    root: str

    @classmethod
    def of(cls, prefix: str, namespace: str | None) -> KeyScope:
        bare = check_prefix(prefix)
        parts = [bare] if bare else []
        if namespace is not None:
            parts.append(check_namespace(namespace))
        return cls(bare, namespace, "".join(f"{part}/" for part in parts))

    def full(self, key: Key) -> str:
        """Return the key in the bucket; raise `Rejected` for a key that could name another object, or one outside."""
        if _FORBIDDEN.search(key):
            raise Rejected(f"{key!r} cannot be the key of an object here")
        return self.root + key

    def relative(self, full: str) -> Key | None:
        """Return the key within this scope, or None for a key outside."""
        if not full.startswith(self.root):
            return None
        return Key(full[len(self.root) :])


_UNKNOWN_TYPE = "application/octet-stream"
_CONTENT_TYPES = {
    "avro": "application/vnd.apache.avro",
    "bz2": "application/x-bzip2",
    "css": "text/css",
    "csv": "text/csv",
    "gif": "image/gif",
    "gz": "application/gzip",
    "htm": "text/html",
    "html": "text/html",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "js": "text/javascript",
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "log": "text/plain",
    "md": "text/markdown",
    "mp4": "video/mp4",
    "ndjson": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "pdf": "application/pdf",
    "png": "image/png",
    "py": "text/x-python",
    "sql": "application/sql",
    "svg": "image/svg+xml",
    "tar": "application/x-tar",
    "tgz": "application/gzip",
    "toml": "application/toml",
    "tsv": "text/tab-separated-values",
    "txt": "text/plain",
    "wav": "audio/wav",
    "webp": "image/webp",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zip": "application/zip",
    "zst": "application/zstd",
}
"""By the ending of a name. A table of our own, since machines differ in their `mime.types`."""


def content_type(key: str) -> str:
    """Return the content type that a key's name tells, for other programs that look at the object."""
    _, dot, suffix = key.rpartition("/")[2].rpartition(".")
    return _CONTENT_TYPES.get(suffix.lower(), _UNKNOWN_TYPE) if dot else _UNKNOWN_TYPE
