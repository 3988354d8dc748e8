"""Names in messages."""

from __future__ import annotations

import pytest

from bayou.core.text import did_you_mean, first_names, nearest


def test_a_wrong_name_brings_up_the_nearest_of_the_known_ones() -> None:
    assert nearest("namespaec", {"url", "path", "namespace"}) == "namespace"
    assert did_you_mean("namespaec", ("url", "path", "namespace"), "known: …") == "did you mean namespace?"


@pytest.mark.parametrize("known", [[], ["url", "path"]])
def test_where_no_name_is_near_the_other_hint_is_given(known: list[str]) -> None:
    assert nearest("namespace", known) is None
    assert did_you_mean("namespace", iter(known), "it takes none") == "it takes none"


@pytest.mark.parametrize(
    ("names", "wanted"), [([], ""), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c", "d"], "a, b and 2 more")]
)
def test_a_long_list_names_the_first_and_counts_the_rest(names: list[str], wanted: str) -> None:
    assert first_names(names, 2) == wanted
