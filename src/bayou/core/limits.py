"""Every limit on what Bayou reads from a store or a clone (V25): one place, checked before a parser runs.

The limits are far above what Bayou itself writes, so that no honest store meets one, and low enough that a client
reads anything up to them within seconds and a few hundred megabytes. `bayou.core.documents` applies those of JSON
and YAML.
"""

from __future__ import annotations

KIB, MIB = 1 << 10, 1 << 20

HEAD_BYTES = 4 * MIB
"""`head.json`: Bayou writes 10 to 25 KB."""
PAGE_BYTES = 4 * MIB
"""One page of the log: 50 rows of some 400 bytes."""
LEASE_BYTES = 64 * KIB
"""One lease: some 300 bytes."""
NODE_BYTES = 16 * MIB
"""One index node as stored: at most 4096 rows, whose paths have at most 1024 bytes, compressed."""
NODE_MEMORY = 512 * MIB
"""Address space that reading one node may take beyond what the parser itself needs."""
LISTING_BYTES = 8 * MIB
"""One page of a listing that Bayou reads itself: a thousand keys of a kilobyte, each byte as %XX, have 4 MB."""
KEY_BYTES = 4 * KIB
"""A key as listed: object stores allow 1 KB, and payload has less."""
NODE_ROWS = 1 << 14
"""Rows of one index node: Bayou writes at most 4097."""
NODE_TEXT = 64 * MIB
"""What the rows of one index node take once they are unpacked: Bayou writes at most some 10 MB."""
NODE_CPU_S = 10
"""Time that the parser may compute on one node: it takes some 10 ms."""
NODE_SECONDS = 60.0
"""Time that the parser may take for one node, or to start, on a machine that has much else to do."""
LABEL_BYTES = 1024
"""An ETag, or the version of an object: stores have some 40 bytes."""
TEXT_LENGTH = 1 << 14
"""One text in a row of an index node: a path has at most 800 bytes, and a bad row must still be named."""
METADATA_BYTES = 1 * MIB
"""One `metadata.yaml`."""
RECORD_BYTES = 16 * MIB
"""One output, run or evaluated definition."""
DEFINITION_BYTES = 4 * MIB
"""One file of `models/` or `workflows/`, one input file."""
CONFIG_BYTES = 1 * MIB
"""`bayou.toml`."""

DEPTH = 64
"""How deep lists and mappings nest in a document."""
VALUES = 1_000_000
"""How many values a document has, once its aliases and merges are written out."""
DEFINITION_VALUES = 100_000
"""The same of a file of `models/` or `workflows/`, where each value keeps its line."""
NUMBER_CHARACTERS = 1000
"""How long a number is, as written: the time that Python takes grows with the square of it."""

SIZE_MAX = 1 << 50
"""The size of one object, in bytes: a thousand terabytes, above what any store takes."""
INT64_MAX = (1 << 63) - 1
"""What a column holds: no store lists a larger size, not even of a file with holes."""
COUNT_MAX = 1 << 53
"""Any other count: rows, bytes of a whole store, a sequence number. JSON readers keep it exact."""
SEQ_MAX = 10**12
"""The number of a commit: one each second for thirty thousand years."""
SUM_MAX = (1 << 63) - 1
"""The bytes of a tree of the index; one bad row can claim nearly all of them, and the others still have their sum."""
TIME_MS = range(-62_135_596_800_000, 253_402_300_800_000)
"""Moments that a calendar has, in ms since 1970: from the year 1 to the year 9999."""
VERSION_MAX = 10**9
"""The number of one version of an item."""
LOG_PAGES_MAX = 100_000
"""How many pages back a reader follows the log."""
TTL_MAX = 24 * 3600.0
"""How long a lease may be held without being renewed, in seconds."""

EXPRESSION_CHARACTERS = 10_000
"""One CEL expression."""
EXPRESSION_STEPS = 400_000_000
"""The estimate up to which an expression is evaluated in this process: bytes that it may move, at the very worst."""
EXPRESSION_SECONDS = 20.0
"""How long any other expression may take, in a process of its own."""
EXPRESSION_MEMORY = 1 << 30
"""Address space of that process, in bytes."""
EXPRESSION_ANSWER = 64 * MIB
"""What an expression comes to, as JSON."""
CONTENT_BYTES = 256 * MIB
"""The content of one version that an expression asks for."""
ATTRIBUTES_BYTES = 32 * MIB
"""The same where it is taken for JSON, which takes up to twenty times the memory."""
