"""How long data is meant to live."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bayou.core.errors import RetentionInvalid
from bayou.data.metadata import Duration, Keep, parse_keep, parse_lifetime
from bayou.data.records import Records
from tests.data.models import MODEL

_START = datetime(2024, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("10m", "2024-01-31T12:10"),
        ("24h", "2024-02-01T12:00"),
        ("7d", "2024-02-07T12:00"),
        ("4w", "2024-02-28T12:00"),
        ("1mo", "2024-02-29T12:00"),
        ("6mo", "2024-07-31T12:00"),
        ("13mo", "2025-02-28T12:00"),
        ("1y", "2025-01-31T12:00"),
        ("999999y", "9999-12-31T23:59"),
    ],
)
def test_a_span_ends_on_the_calendar(text: str, end: str) -> None:
    span = parse_lifetime(text)
    assert isinstance(span, Duration)
    assert span.after(_START).isoformat()[:16] == end


def test_some_lifetimes_are_words() -> None:
    assert (parse_lifetime("run"), parse_lifetime("infinite")) == ("run", "infinite")


@pytest.mark.parametrize(("text", "keep"), [("5", Keep(count=5)), ("30d", Keep(span=Duration(30, "d")))])
def test_keep_is_a_number_or_a_span(text: str, keep: Keep) -> None:
    assert parse_keep(text) == keep


@pytest.mark.parametrize("text", ["", "0d", "7", "7 d", "d", "-1d", "1.5d", "for ever", "7D", "٣d", "1000000d", "7d "])
def test_what_is_no_lifetime_is_refused_before_anything_is_written(records: Records, text: str) -> None:
    with pytest.raises(RetentionInvalid, match="no lifetime"):
        records.data.save(MODEL, "x", b"", lifetime=text)
    assert not (records.tree.root / "data").exists()


@pytest.mark.parametrize("text", ["", "0", "-1", "all", "٣", "1.0", "run"])
def test_what_does_not_say_how_much_to_keep_is_refused(records: Records, text: str) -> None:
    with pytest.raises(RetentionInvalid, match="how much to keep"):
        records.data.save(MODEL, "x", b"", keep=text)
