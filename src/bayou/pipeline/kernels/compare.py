"""Cases of a collection: what an index, its trash or a listing says of a key."""

from __future__ import annotations

import pyarrow

from bayou.pipeline.arrow import BYTES, INT, TEXT, TIME

ENTRY, WASTED, OBJECT = "entry", "wasted", "object"
REFUSED, NAMELESS, TRASH_REFUSED, DAMAGED = "refused", "nameless", "trash-refused", "damaged"
"""Of an index besides: a row that nothing is done by (V25; one that can name no object; one of the trash), and a node
that cannot be read."""

CASES = pyarrow.schema(
    {"key": BYTES, "kind": TEXT, "size": INT, "sha256": BYTES, "etag": TEXT, "version": TEXT, "modified": TIME}
)
"""What an index (`ENTRY`), its trash (`WASTED`) or a listing (`OBJECT`) says of a key: path and push follow from it."""
