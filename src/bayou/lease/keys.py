"""What leases are called, and what their objects are called.

A key is text for people: `model/<type>/<id>`, `store`, `commit`. Types have slashes, and a key may be longer than a
file's name, so the object's name is made of it here and is never taken apart: the key is also in the record.
"""

from __future__ import annotations

import hashlib

from bayou.core.errors import UsageError
from bayou.objectstore import keys
from bayou.objectstore.keys import Key

STORE = "store"
"""Keeps every writer of a model out, and waits for those that are at work."""

COMMIT = "commit"
"""Lets a committer that loses one race after the other go first. Nobody waits for it but committers."""

_MODEL = "model/"
_LONGEST = 200


def model_key(model_type: str, model_id: str) -> str:
    """Name the lease for writers of one model."""
    return f"{_MODEL}{model_type}/{model_id}"


def is_work(key: str) -> bool:
    """Whether this is a lease that `store` excludes: all but `store` itself and `commit`."""
    return key not in (STORE, COMMIT)


def check_key(key: str) -> str:
    """Return a key that can be one."""
    if not key:
        raise UsageError("a lease has no empty key", hint="list them with `bayou datastore lock status`")
    return key


def object_key(key: str) -> Key:
    """Name the object of a lease; one whose key is too long for a file's name is named by its hash."""
    whole = keys.lease(key)
    if len(whole) <= _LONGEST:
        return whole
    return keys.lease(f"long-{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()}")
