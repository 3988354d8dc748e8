"""Record files that a peer with bad intent, or a bad disk, leaves in a store."""

from __future__ import annotations

from collections.abc import Mapping

DEEP = 200_000


def alias_bomb(merge: bool = False) -> bytes:
    """YAML of a kilobyte that has a billion values, once it is written out."""
    lines = [b"a0: &a0 {x: 1, y: 2}" if merge else b"a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 12):
        names = b", ".join([b"*a%d" % (level - 1)] * 9)
        lines.append(b"a%d: &a%d %s" % (level, level, b"{<<: [%s]}" % names if merge else b"[%s]" % names))
    return b"\n".join(lines) + b"\n"


UNPARSABLE: Mapping[str, bytes] = {
    "flow lists": b"[" * DEEP,
    "flow mappings": b"{a: " * DEEP,
    "block lists": b"- " * DEEP,
    "keys in keys": b"? " * DEEP,
    "mixed": b"- {a: [" * (DEEP // 4),
    "indented": b"".join(b" " * level + b"a:\n" for level in range(1200)),
    "wide indentation": b"a:\n" + b" " * 900_000 + b"- b\n",
    "json lists": b"id: " + b"[" * DEEP + b"]" * DEEP + b"\n",
    "alias bomb": alias_bomb(),
    "merge bomb": alias_bomb(merge=True),
    "long text by alias": b"a: &a " + b"x" * 500_000 + b"\nb: [" + b"*a, " * 100_000 + b"*a]\n",
    "an alias of itself": b"&a [*a]\n",
    "a chain of aliases": b"a0: &a0 [x]\n" + b"".join(b"a%d: &a%d [*a%d]\n" % (n, n, n - 1) for n in range(1, 3000)),
    "directives": b"".join(b"%%TAG !a%d! x\n" % number for number in range(50_000)) + b"--- a\n",
    "long key": b"k" * 900_000 + b": 1\n",
    "long tag": b"!<" + b"a" * 900_000 + b"> x\n",
    "an object": b"!!python/object/apply:os.system [true]\n",
    "binary": b"id: !!binary aGVsbG8=\n",
    "a list as a name": b"? [a, b]\n: 1\n",
    "nul": b"id: \0\n",
    "utf-16": "id: 1\n".encode("utf-16"),
    "not utf-8": b"id: \xff\n",
    "newlines": b"\n" * 900_000,
    "too large": b"# " + b"x" * (17 << 20),
}
"""Files that no reader of records takes, whatever field it asks for."""

NUMBERS: Mapping[str, str] = {
    "beyond 64 bits": str(2**70),
    "too large for Python": "9" * 5000,
    "sexagesimal": "1" + ":1" * 300_000,
    "hexadecimal": "0x" + "f" * 300_000,
    "binary": "0b" + "1" * 300_000,
    "underscores": "1" + "_" * 300_000,
    "infinite": ".inf",
    "not a number": ".nan",
    "too large for a float": "1.0e+999",
    "a long float": "9" * 400 + ".0",
    "negative": "-1",
    "a text": '"1"',
    "a truth value": "true",
    "a date": "2026-01-01",
    "no date": "2026-13-45",
    "nothing": "",
    "a list": "[1]",
    "a number with a tag": "!!int x",
}
"""What stands in the place of a size or a version and is none."""
