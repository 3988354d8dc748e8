"""Which requests a rule applies to."""

from __future__ import annotations

from typing import Any

import pytest

from bayou_testing.faults import Delay, Fail, Faults, Garbage, LoseResponse, Reset, Rule, Silent, Truncate, takes_effect


@pytest.mark.parametrize(
    ("counts", "applied_to"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"nth": 3}, [3]),
        ({"times": 2}, [1, 2]),
        ({"nth": 3, "times": 2}, [3, 4]),
        ({"every": 3}, [3, 6, 9]),
        ({"every": 3, "times": 2}, [3, 6]),
        ({"every": 3, "nth": 2}, [2, 5, 8]),
        ({"every": 4, "nth": 1, "times": 2}, [1, 5]),
    ],
)
def test_a_rule_applies_to_the_requests_it_counts(counts: dict[str, Any], applied_to: list[int]) -> None:
    faults = Faults(Rule(Fail(500), **counts))
    assert [number for number in range(1, 10) if faults.take("GET", "/b/k")] == applied_to


def test_a_rule_counts_only_what_it_fits() -> None:
    rule = Rule(Fail(500), method="PUT", path=r"/head\.json$", query="uploadId=", nth=2)
    faults = Faults(rule)
    misses = [("GET", "/b/head.json", "uploadId=1"), ("PUT", "/b/head_json", "uploadId=1"), ("PUT", "/b/head.json", "")]
    for miss in misses * 3:
        assert not faults.take(*miss)
    assert not faults.take("PUT", "/b/head.json", "partNumber=1&uploadId=1")
    assert faults.take("PUT", "/b/head.json", "partNumber=2&uploadId=1") == [Fail(500)]
    assert faults.applied(rule) == 1


def test_pauses_add_up_and_the_first_of_the_others_decides() -> None:
    second = Rule(Reset())
    faults = Faults(Rule(Delay(1)), Rule(Fail(500)), second, Rule(Delay(2)))
    assert faults.take("GET", "/b/k") == [Delay(1), Fail(500), Delay(2)]
    assert faults.applied(second) == 0


def test_cleared_rules_apply_no_more() -> None:
    rule = Rule(Fail(500))
    faults = Faults(rule)
    faults.clear()
    assert not faults.take("GET", "/b/k")
    faults.add(rule)
    assert faults.take("GET", "/b/k")


def test_a_rule_that_could_never_apply_is_refused() -> None:
    with pytest.raises(ValueError, match="from 1"):
        Rule(Fail(500), nth=0)


def test_some_actions_let_the_request_take_effect() -> None:
    assert takes_effect(None)
    assert takes_effect(Fail(503, applied=True))
    assert takes_effect(Truncate(1))
    assert takes_effect(LoseResponse())
    assert not any(takes_effect(action) for action in (Fail(503), Reset(), Garbage(b""), Silent()))
