"""Two clones, one store: the everyday story."""

from __future__ import annotations

import pytest

from tests.sync.conftest import Team


@pytest.mark.parametrize("kind", ["team", "s3_team", "gcs_team"])
def test_two_clones_see_the_same(kind: str, request: pytest.FixtureRequest) -> None:
    team: Team = request.getfixturevalue(kind)
    a, b = team.clone("a"), team.clone("b")
    a.write_all({f"data/t/m/n{number}/1/raw": f"content {number}".encode() for number in range(20)})
    assert a.sync().pushed.files == 20
    assert a.sync().engine == "fast"
    assert b.sync().pulled.files == 20
    assert b.files == a.files
    again = b.sync()
    assert (again.engine, again.requests.total) == ("fast", 1)


def test_a_conflict_keeps_both(team: Team) -> None:
    a, b = team.clone("a"), team.clone("b")
    a.write("files/x", "one")
    a.sync()
    b.sync()
    a.write("files/x", "from a")
    b.write("files/x", "from b")
    a.sync()
    report = b.sync()
    assert report.exit_code == 3
    (conflict,) = report.conflicts
    assert conflict.copy is not None
    with open(conflict.copy) as kept:
        assert kept.read() == "from b"
    assert b.files == {"files/x": b"from a"}
    assert b.sync().engine == "fast"
