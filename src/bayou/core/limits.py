"""All limits on data that Bayou reads from a store or a clone, checked before a parser runs (V25).

The limits are far above what Bayou writes, so that no honest store reaches them, and low enough that a client reads
anything within them in seconds and a few hundred megabytes. `bayou.core.documents` applies those of JSON and YAML.
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
"""Address space for reading one node, beyond what the parser itself needs."""
LISTING_BYTES = 8 * MIB
"""One page of a listing that Bayou parses itself: a thousand keys of a kilobyte, each byte as %XX, have 4 MB."""
KEY_BYTES = 4 * KIB
"""A key in a listing: object stores allow 1 KB, and payload keys are shorter."""
NODE_ROWS = 1 << 14
"""Rows of one index node: Bayou writes at most 4097."""
NODE_TEXT = 64 * MIB
"""The rows of one index node, decompressed: Bayou writes at most some 10 MB."""
NODE_CPU_S = 10
"""CPU time of the parser for one node: it takes some 10 ms."""
NODE_SECONDS = 60.0
"""Time for the parser to start, or to read one node, on a busy machine."""
LABEL_BYTES = 1024
"""An ETag, or the version of an object: stores use some 40 bytes."""
TEXT_LENGTH = 1 << 14
"""One text in a row of an index node: a path has at most 800 bytes, but messages must name bad rows too."""
METADATA_BYTES = 1 * MIB
"""One `metadata.yaml`."""
FILES_MAX = 100_000
"""Files of one version: the names of parts have five digits."""
MANIFEST_BYTES = 128 * MIB
"""One `manifest.json`: 100,000 files with paths of a kilobyte have 120 MB; ordinary ones 200 bytes a file."""
RECORD_BYTES = 16 * MIB
"""One output, run or evaluated definition."""
DEFINITION_BYTES = 4 * MIB
"""One file of `models/` or `workflows/`, one input file."""
CONFIG_BYTES = 1 * MIB
"""`bayou.toml`."""

DEPTH = 64
"""How deep lists and mappings nest in a document."""
VALUES = 1_000_000
"""How many values a document has, with its aliases and merges expanded."""
DEFINITION_VALUES = 100_000
"""The same for a file of `models/` or `workflows/`, where each value keeps its line."""
NUMBER_CHARACTERS = 1000
"""The length of a number's text: Python's parsing time grows with its square."""

PACKED_BYTES = 16 * MIB
"""One file in a pack: a client packs files of less than a megabyte, unless the configuration says otherwise."""
PACK_BYTES = 256 * MIB
"""One pack: a client makes packs of some 8 MB, unless the configuration says otherwise."""
PACK_LIST_BYTES = 64 * MIB
"""The list of a pack's files, inflated: some 200 bytes for each."""

SIZE_MAX = 1 << 50
"""The size of one object in bytes: a thousand terabytes, more than any store accepts."""
INT64_MAX = (1 << 63) - 1
"""The largest value of a column: no store lists a larger size, not even for a sparse file."""
COUNT_MAX = 1 << 53
"""Any other count: rows, bytes of a whole store, a sequence number. JSON readers represent it exactly."""
SEQ_MAX = 10**12
"""The number of a commit: one each second for thirty thousand years."""
SUM_MAX = (1 << 63) - 1
"""The bytes of a tree of the index: large enough for the sum if one bad row claims nearly all of it."""
TIME_MS = range(-62_135_596_800_000, 253_402_300_800_000)
"""Valid times in ms since 1970: the years 1 to 9999."""
VERSION_MAX = 10**9
"""The number of one version of an item."""
LOG_PAGES_MAX = 100_000
"""How many pages back a reader follows the log."""
TTL_MAX = 24 * 3600.0
"""Seconds for which a holder may keep a lease without renewing it."""

EXPRESSION_CHARACTERS = 10_000
"""One CEL expression."""
EXPRESSION_STEPS = 400_000_000
"""The worst-case cost, in bytes moved, up to which this process evaluates an expression itself."""
EXPRESSION_SECONDS = 20.0
"""Seconds for any other expression, which runs in a process of its own."""
EXPRESSION_MEMORY = 1 << 30
"""Address space of that process, in bytes."""
EXPRESSION_ANSWER = 64 * MIB
"""The result of an expression, as JSON."""
CONTENT_BYTES = 256 * MIB
"""The content of one version that an expression reads."""
ATTRIBUTES_BYTES = 32 * MIB
"""The same for content that is parsed as JSON, which takes up to twenty times the memory."""
