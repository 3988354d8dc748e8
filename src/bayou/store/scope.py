"""Where in a bucket one store lives: prefix and namespace, fixed when the store is made (V9)."""

from __future__ import annotations

import re

from msgspec import Struct

from bayou.core import paths
from bayou.core.errors import ConfigInvalid, NamespaceInvalid, Rejected
from bayou.store.keys import Key

_SLUG = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_MAX_NAMESPACE = 64
_NO_NAME = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)|[\x00-\x1f\x7f]")
"""An empty segment, `.` or `..` (clients and servers drop or resolve these: the key would name another object), or a
control character, which obstore cannot send."""


def check_namespace(name: str) -> str:
    """Return a good namespace, or raise before any request is sent."""
    hint = "use a-z, 0-9 and inner dashes, at most 64 characters, and not the name of a payload root"
    if not _SLUG.fullmatch(name) or len(name) > _MAX_NAMESPACE:
        raise NamespaceInvalid(f"not a namespace: {name!r}", hint=hint)
    if name in paths.PAYLOAD_ROOTS:
        raise NamespaceInvalid(f"{name!r} is the name of a payload root, so it cannot be a namespace", hint=hint)
    return name


def check_prefix(prefix: str) -> str:
    """Return a prefix without slashes at its ends, or raise if it has no plain meaning as a directory."""
    bare = prefix.strip("/")
    if bare and (why := paths.unsafe(bare)):
        raise ConfigInvalid(f"bad prefix {prefix!r} in the store's URL: {why}", hint="use plain names separated by /")
    return bare


class Scope(Struct, frozen=True):
    """A directory of a bucket. `full` and `relative` are the only way across its border."""

    prefix: str
    namespace: str | None
    root: str

    @classmethod
    def of(cls, prefix: str, namespace: str | None) -> Scope:
        bare = check_prefix(prefix)
        parts = [bare] if bare else []
        if namespace is not None:
            parts.append(check_namespace(namespace))
        return cls(bare, namespace, "".join(f"{part}/" for part in parts))

    def full(self, key: Key) -> str:
        """Return the key in the bucket; `Rejected` for one that could name something else, or something outside."""
        if _NO_NAME.search(key):
            raise Rejected(f"{key!r} cannot be the key of an object here")
        return self.root + key

    def relative(self, full: str) -> Key | None:
        """Return the key within this scope, or None for one outside it."""
        if not full.startswith(self.root):
            return None
        return Key(full[len(self.root) :])
