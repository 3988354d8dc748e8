"""Record files are YAML, and are read at the speed of JSON."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from bayou.core.errors import RecordDamaged, UsageError
from bayou.data import document

# YAML tools read no key of more than 1,024 characters.
_keys = st.text(max_size=50)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=12,
)
_ODD = "\x00\t\n\r\x1b\x7f\x80\x85\x9f\xa0\u2028\u2029\ufeff\ufffe\uffff😀\U0010ffff\"\\'#: -?{}[],&*!|>%@`"


@given(st.dictionaries(_keys, _values, max_size=6))
@example({"odd": _ODD, _ODD: {_ODD: [_ODD]}, "": "", "yes": 1, "null": None, "true": True, "e1e5": "1e5"})
@example({"large": 1e16, "small": 1e-07, "tiny": -5e-324, "list": [1e22, "1e22", 2.5e300], "whole": 10**30})
@example({"date": "2024-01-02", "octal": "0o17", "time": "12:30:45", "text": "null", "tilde": "~", "merge": "<<"})
def test_every_reader_of_yaml_gets_what_was_dumped(fields: dict[str, object]) -> None:
    data = document.dump(fields)
    assert document.load(data) == fields
    assert (yaml.safe_load(data) or {}) == fields
    assert (yaml.load(data, yaml.CSafeLoader) or {}) == fields


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]*", fullmatch=True), _values, max_size=6))
def test_what_was_dumped_is_read_without_a_yaml_parser(fields: dict[str, object]) -> None:
    fields = {key: value for key, value in fields.items() if key not in document._YAML_WORDS}
    assert document._fast(document.dump(fields).decode()) == fields


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("name: plain words\nversion: 3\n", {"name": "plain words", "version": 3}),
        ("name: 'x' # a comment\n", {"name": "x"}),
        ("tags:\n  a: b\n  c: [d, e]\n", {"tags": {"a": "b", "c": ["d", "e"]}}),
        ("{name: x, version: 2}", {"name": "x", "version": 2}),
        ("name: |\n  two\n  lines\n", {"name": "two\nlines\n"}),
    ],
)
def test_what_somebody_wrote_by_hand_is_read_too(text: str, fields: dict[str, object]) -> None:
    assert document.load(text.encode()) == fields


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe",
        b"name: [1\nversion: 2\n",
        b"- a\n- b\n",
        b"just words\n",
        b"1: 2\n",
        b"a: 1\na: [\n",
        b"d: 2024-13-45\n",
    ],
)
def test_a_file_that_is_no_record_is_named(data: bytes) -> None:
    with pytest.raises(RecordDamaged, match="data/some/file"):
        document.load(data, "data/some/file")


@pytest.mark.parametrize(
    "text", ["a: [1\nb: 2]\nc: 1, 2\n", 'a: [1\nb: 2]\nc: 1, 2,"\\u0000", 3\n', "a: 1, 2\n", "a: \n"]
)
def test_a_value_never_takes_a_part_of_another(text: str) -> None:
    assert document._fast(text) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, b"bytes", object(), "\ud800", {"\ud800": 1}, {1, 2}])
def test_what_is_no_json_value_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="not a record"):
        document.dump({"value": value})
