"""Structs: conversion refuses what a document lacks or has wrong and names the field; some fields are ignored."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import pytest
from msgspec import Meta, Struct
from msgspec.structs import replace

from bayou.core import limits
from bayou.core.structs import (
    Count,
    Identifier,
    Label,
    Malformed,
    SelectiveStruct,
    Seq,
    Time,
    Total,
    check_object,
    check_time,
    convert,
    dump_json,
    parse,
    require_field,
    unknown_fields,
)


class Secret(SelectiveStruct, frozen=True):
    uncompared: ClassVar[tuple[str, ...]] = ("note",)
    unhashed: ClassVar[tuple[str, ...]] = ("tags",)
    unshown: ClassVar[tuple[str, ...]] = ("token",)

    name: str
    token: str
    tags: dict[str, str]
    note: str = ""


class Inner(Struct, frozen=True):
    size: Count


class Document(Struct, frozen=True):
    id: Identifier
    seq: Seq
    label: Label | None
    at: Time
    total: Total = 0
    inner: Inner | None = None


GOOD: dict[str, Any] = {
    "id": "01-Ab",
    "seq": 7,
    "label": None,
    "at": "2024-02-29T12:00:00.000Z",
    "total": 3,
    "inner": {"size": 1},
}


def test_fields_that_are_not_compared_make_no_difference_to_equality_and_hash() -> None:
    one, two = Secret("a", "t", {"x": "1"}, "first"), Secret("a", "t", {"x": "1"}, "second")
    assert one == two
    assert hash(one) == hash(two)
    assert len({one, two}) == 1


@pytest.mark.parametrize("change", [{"name": "b"}, {"token": "u"}, {"tags": {}}])
def test_every_other_field_makes_a_difference_to_equality(change: dict[str, Any]) -> None:
    secret = Secret("a", "t", {"x": "1"})
    assert replace(secret, **change) != secret


def test_a_field_that_is_not_hashed_is_still_compared() -> None:
    one, two = Secret("a", "t", {"x": "1"}), Secret("a", "t", {"x": "2"})
    assert hash(one) == hash(two)
    assert one != two


def test_structs_of_two_classes_are_not_equal() -> None:
    class Other(SelectiveStruct, frozen=True):
        name: str

    class Another(SelectiveStruct, frozen=True):
        name: str

    assert Other("a") != Another("a")
    assert Other("a") != "a"


def test_the_repr_has_every_field_but_the_hidden_ones() -> None:
    assert repr(Secret("a", "hunter2", {}, "n")) == "Secret(name='a', tags={}, note='n')"


def test_a_selective_struct_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Secret("a", "t", {}).name = "b"  # type: ignore[misc]


def test_a_whole_document_becomes_a_struct() -> None:
    assert convert(GOOD, Document) == Document("01-Ab", 7, None, "2024-02-29T12:00:00.000Z", total=3, inner=Inner(1))


def test_a_value_that_is_a_struct_already_stays_as_it_is() -> None:
    inner = Inner(5)
    assert convert({**GOOD, "inner": inner}, Document).inner is inner


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_field_is_named_although_its_class_has_a_default(name: str) -> None:
    fields = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(Malformed, match=rf"\A{name} is missing\Z"):
        convert(fields, Document)
    with pytest.raises(Malformed, match=rf"\Agc\.{name} is missing\Z"):
        convert(fields, Document, "gc")


def test_an_optional_field_may_be_missing_and_then_has_the_default_of_its_class() -> None:
    fields = {key: value for key, value in GOOD.items() if key not in ("total", "inner")}
    made = convert(fields, Document, optional=("total", "inner"))
    assert (made.total, made.inner) == (0, None)


def test_unknown_fields_are_ignored_by_convert_and_kept_by_unknown_fields() -> None:
    fields = {**GOOD, "later": [1], "extra": 2}
    assert convert(fields, Document) == convert(GOOD, Document)
    assert unknown_fields(fields, Document) == {"later": [1], "extra": 2}


def test_a_document_that_has_a_field_called_extra_keeps_it_apart_from_the_records_own() -> None:
    class Record(Struct, frozen=True):
        seq: int
        extra: dict[str, Any]

    assert unknown_fields({"seq": 1, "extra": "theirs"}, Record) == {"extra": "theirs"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seq", "7"),
        ("seq", 7.5),
        ("seq", True),
        ("seq", None),
        ("seq", -1),
        ("seq", limits.SEQ_MAX),
        ("seq", 10**400),
        ("total", limits.SUM_MAX + 1),
        ("id", ""),
        ("id", "x" * 65),
        ("id", "a/b"),
        ("id", "a\n"),
        ("id", 5),
        ("label", "x" * (limits.LABEL_BYTES + 1)),
        ("label", 5),
        ("at", "2024-02-29T12:00:00Z"),
        ("at", "2024-02-29T12:00:00.000+00:00"),
        ("at", "2024-02-29T12:00:00.000Z\n"),
        ("at", "2024-02-29 12:00:00.000Z"),
        ("at", 1709208000000),
        ("inner", []),
        ("inner", "x"),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_refused_with_its_name(name: str, value: object) -> None:
    with pytest.raises(Malformed) as raised:
        convert({**GOOD, name: value}, Document)
    assert str(raised.value).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seq", 0),
        ("seq", limits.SEQ_MAX - 1),
        ("total", limits.SUM_MAX),
        ("id", "x" * 64),
        ("label", "x" * limits.LABEL_BYTES),
        ("inner", {"size": limits.COUNT_MAX}),
    ],
)
def test_a_value_at_its_limit_is_accepted(name: str, value: object) -> None:
    found = getattr(convert({**GOOD, name: value}, Document), name)

    assert (found.size if name == "inner" else found) == (value["size"] if isinstance(value, dict) else value)


@pytest.mark.parametrize(("where", "place"), [("", "inner.size"), ("gc", "gc.inner.size")])
def test_an_error_inside_a_document_names_the_whole_way_to_the_field(where: str, place: str) -> None:
    with pytest.raises(Malformed) as raised:
        convert({**GOOD, "inner": {"size": limits.COUNT_MAX + 1}}, Document, where)
    assert str(raised.value) == f"{place}: expected `int` <= {limits.COUNT_MAX}"


def test_an_error_in_a_list_names_the_position() -> None:
    class Rows(Struct, frozen=True):
        rows: list[Annotated[int, Meta(ge=0)]]

    with pytest.raises(Malformed) as raised:
        convert({"rows": [1, -1]}, Rows)
    assert str(raised.value) == "rows[1]: expected `int` >= 0"


def test_a_required_field_is_returned_even_if_it_is_null() -> None:
    assert require_field({"a": None}, "a") is None
    with pytest.raises(Malformed, match=r"\Ahead\.a is missing\Z"):
        require_field({}, "a", "head")


def test_parse_returns_an_object_and_refuses_everything_else() -> None:
    assert parse(b'{"a": 1}', 8) == {"a": 1}
    with pytest.raises(Malformed, match="more than 7 bytes"):
        parse(b'{"a": 1}', 7)
    for data in (b"[]", b"1", b"null"):
        with pytest.raises(Malformed, match="the document is not an object"):
            parse(data, 100)
    for data in (b"", b"{", b"\xff", b'{"a": NaN}'):
        with pytest.raises(Malformed):
            parse(data, 100)


def test_a_value_that_is_no_object_is_named_by_its_place() -> None:
    assert check_object({}, "gc") == {}
    with pytest.raises(Malformed, match=r"\Agc is not an object\Z"):
        check_object([], "gc")


@pytest.mark.parametrize("text", ["2023-02-29T00:00:00.000Z", "2024-13-01T00:00:00.000Z", "2024-01-01T25:00:00.000Z"])
def test_a_time_of_the_right_form_that_no_calendar_has_is_refused(text: str) -> None:
    convert({**GOOD, "at": text}, Document)
    with pytest.raises(Malformed, match=r"\Aat is not a time\Z"):
        check_time(text, "at")


def test_a_valid_time_passes() -> None:
    check_time("2024-02-29T23:59:59.999Z", "at")


def test_a_document_is_written_compactly_and_in_the_order_of_its_fields() -> None:
    assert dump_json({"b": [1, 2], "a": "é"}) == b'{"b":[1,2],"a":"\\u00e9"}'
    assert parse(dump_json(GOOD), 1000) == GOOD
