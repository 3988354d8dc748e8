"""Going on with a run: only what did not succeed is repeated, with the inputs of the first attempt."""

from __future__ import annotations

import shutil

import pytest
from msgspec.structs import replace

from bayou.core.errors import NothingToResume
from bayou.data.records import Records
from bayou.session import write_session
from bayou.state.connection import Connection
from bayou.workflows.run import resumed_run, run_owner
from tests.sync.conftest import Clone, Team
from tests.workflows.going import go, recorded, resume, statuses
from tests.workflows.scene import lay, shell

JOBS = """
- name: one
  steps:
    - {name: first, model: a, method: execute, inputs: {run: "echo first ${{ inputs.word }} >> done"}}
    - name: each
      for_each: [x, y]
      model: b
      method: execute
      depends_on: [first]
      inputs: {run: 'echo ${{ each.value }} ${{ inputs.word }} >> done; test ${{ each.value }} = x || test -e ready'}
- name: two
  depends_on: [one]
  steps: [{name: last, model: a, method: execute, inputs: {run: "echo last >> done"}}]
"""


@pytest.fixture
def clone(team: Team) -> Clone:
    made = team.clone("one")
    for name in "ab":
        shell(made.repo, name)
    lay(made.repo, JOBS, "inputs: {word: {type: string, default: standard}}\n")
    made.push()
    return made


def done(clone: Clone) -> list[str]:
    file = clone.repo.root / "done"
    lines = file.read_text().splitlines()
    file.unlink()
    return sorted(lines)


def test_only_what_did_not_succeed_is_repeated_with_the_inputs_of_the_first_attempt(clone: Clone, team: Team):
    failed = go(clone, word="given").run
    assert statuses(failed) == {"first": "succeeded", "each[x]": "succeeded", "each[y]": "failed", "last": "skipped"}
    assert done(clone) == ["first given", "x given", "y given"]
    (clone.repo.root / "ready").touch()

    run = resume(clone, failed.run_id).run

    assert done(clone) == ["last", "y given"]
    assert set(statuses(run).values()) == {"succeeded"}
    assert (run.run_id, run.status, run.failed_step) == (failed.run_id, "succeeded", None)
    assert (run.started_at, run.inputs) == (failed.started_at, {"word": "given"})
    reader = team.clone("reader")
    reader.pull()
    assert recorded(reader, run.run_id) == run


def test_another_machine_can_go_on(clone: Clone, team: Team):
    failed = go(clone).run
    other = team.clone("other")
    for folder in ("models", "workflows"):
        shutil.copytree(clone.repo.root / folder, other.repo.root / folder, dirs_exist_ok=True)
    (other.repo.root / "ready").touch()
    other.pull()

    run = resume(other, failed.run_id).run

    assert run.status == "succeeded"
    assert done(other) == ["last", "y standard"]
    clone.pull()
    assert recorded(clone, run.run_id) == run


def test_a_run_that_has_succeeded_is_not_resumed(clone: Clone):
    (clone.repo.root / "ready").touch()
    run = go(clone).run

    with pytest.raises(NothingToResume, match="has succeeded"):
        resume(clone, run.run_id)


def test_a_run_that_goes_on_is_not_resumed_unless_its_process_is_gone(clone: Clone):
    run = go(clone).run
    with Records(clone.repo) as records:
        records.runs.save(replace(run, status="running", finished_at=None))

    with pytest.raises(NothingToResume, match="goes on"):
        resume(clone, run.run_id)

    (clone.repo.root / "ready").touch()
    assert resume(clone, run.run_id, abandoned=True).run.status == "succeeded"


def test_a_run_that_somebody_resumes_is_not_resumed_by_another_machine(clone: Clone, team: Team):
    run = go(clone).run
    other = team.clone("other")
    for folder in ("models", "workflows"):
        shutil.copytree(clone.repo.root / folder, other.repo.root / folder, dirs_exist_ok=True)
    with write_session(clone.repo, models=[run_owner(Connection(clone.repo), run.run_id)[0]]) as session:
        resumed_run(clone.repo, session.records, run.run_id)

    with pytest.raises(NothingToResume, match="goes on"):
        resume(other, run.run_id)


def test_what_is_wrong_with_the_workflow_by_now_changes_nothing(clone: Clone):
    failed = go(clone).run
    file = clone.repo.root / "workflows" / "nightly.yaml"
    file.write_text(file.read_text().replace("model: b", "model: nobody"))

    with pytest.raises(Exception, match="there is no model nobody"):
        resume(clone, failed.run_id)

    assert recorded(clone, failed.run_id) == failed
