"""The logs of steps, as other machines see them."""

from __future__ import annotations

import pytest

from bayou.data.logs import logs_of_run, read_log, tail_of
from bayou.data.records import Records
from tests.sync.conftest import Clone, Team
from tests.workflows.going import go
from tests.workflows.scene import lay, shell

TYPE = """
class Fetch:
    type = "@team/fetch"
    def get(self, city: str):
        print("looking for", city)
        raise LookupError(f"no {city}")
"""


@pytest.fixture
def clone(team: Team) -> Clone:
    made = team.clone("one")
    (made.repo.root / "extensions/models").mkdir(parents=True)
    (made.repo.root / "extensions/models/fetch.py").write_text(TYPE)
    (made.repo.root / "models/@team/fetch").mkdir(parents=True)
    (made.repo.root / "models/@team/fetch/weather.yaml").write_text(
        "id: 0f0e0d0c-0b0a-4908-8706-050403020100\nname: weather\ntype: '@team/fetch'\narguments: {city: Atlantis}\n"
    )
    shell(made.repo, "a")
    made.push()
    return made


def test_a_peer_reads_why_last_nights_run_failed(clone: Clone, team: Team):
    """Also of a class without `keep_failed`, whose other data does not stay."""
    lay(
        clone.repo,
        """
        - name: main
          steps:
            - {name: x, model: weather, method: get}
            - {name: y, model: a, method: execute, inputs: {run: echo fine}}
        """,
    )
    run = go(clone).run

    peer = team.clone("two")
    peer.pull()
    with Records(peer.repo) as records:
        records.catalog.refresh()
        logs = logs_of_run(records, run.run_id)
        texts = {step: b"".join(read_log(records, rows[0])).decode() for (_, step), rows in logs.items()}
        end = tail_of(records, logs["main", "x"][0], lines=1, most=1000)
        found = records.runs.get("latest")

    assert run.status == "failed"
    assert found == run
    assert texts["y"] == "fine\n"
    assert texts["x"].startswith("looking for Atlantis\nTraceback (most recent call last):\n")
    assert 'fetch.py", line 6, in get\n' in texts["x"]
    assert (end.text, end.left_out) == ("LookupError: no Atlantis\n", len(texts["x"]) - len(end.text))


def test_the_end_of_a_log_begins_with_a_whole_line_and_is_bounded(clone: Clone):
    lay(clone.repo, "- {name: main, steps: [{name: x, model: a, method: execute, inputs: {run: seq 1 1000}}]}")
    run = go(clone).run

    with Records(clone.repo) as records:
        log = logs_of_run(records, run.run_id)["main", "x"][0]
        whole = b"".join(read_log(records, log))
        end = tail_of(records, log, most=11)
        part = b"".join(read_log(records, log, 2, 4))

    assert end.text == "999\n1000\n"
    assert end.left_out == len(whole) - 9
    assert part == whole[2:6]
