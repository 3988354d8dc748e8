"""Names from the sensible to the hostile, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from bayou.core import paths

_UUID = "6f2b1c1e-0000-4000-8000-000000000000"
_TRICKS = [
    "",
    ".",
    "..",
    "...",
    ".bayou",
    ".BAYOU",
    ".Bayou-x.tmp",
    ".bayou-x.tmp",
    ".lock",
    ".LOCK",
    ".loc\u212a",
    ".locks",
    "_index",
    "_Index",
    "_catalog.db-wal",
    f".{_UUID}.tmp",
    f"raw.tmp.12.{_UUID}",
    "x.tmp.y",
    "x.lock",
    "~",
    "~01HZZZZZZZZZZZZZZZZZZZZZZZ",
    "a~b",
    "a\\b",
    "..\\x",
    "C:",
    "nul\0",
    "new\nline",
    "\x7f",
    "\x85",
    "caf\u00e9",
    "cafe\u0301",
    "\u1e9b\u0323",
    "\udc80",
    "\ud800",
    "\u202egnp.exe",
    "x" * 255,
    "x" * 256,
    "é" * 127,
    "é" * 128,
    "日本語",
    "😀" * 60,
    " ",
    "raw",
    "metadata.yaml",
]

segments = st.one_of(
    st.sampled_from(_TRICKS),
    st.text(max_size=12),
    st.text(st.characters(codec=None, exclude_characters="/"), min_size=1, max_size=6),
    st.from_regex(r"[._~]?[A-Za-z0-9_-]{1,8}(\.[A-Za-z]{1,4}){0,3}", fullmatch=True),
)
any_paths = st.one_of(
    st.builds(
        lambda root, below: "/".join([root, *below]),
        st.sampled_from([*sorted(paths.PAYLOAD_ROOTS), "Data", "", ".", "..", "secrets"]),
        st.lists(segments, max_size=5),
    ),
    st.builds(
        lambda root, below: "/".join([root, *below]), st.just("data"), st.lists(segments, min_size=1, max_size=4)
    ),
    st.text(max_size=20),
)
