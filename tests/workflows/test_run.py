"""Runs: what begins when, what it comes to, and what is recorded and pushed."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from bayou.core.errors import InputInvalid, Unavailable, WorkflowInvalid
from bayou.data.records import Records
from bayou.models import find_model
from bayou.repo import init_repo
from bayou.session import write_session
from bayou.state.connection import Connection
from bayou.workflows.run import new_run
from tests.secrets import PEM, leaked
from tests.sync.conftest import Clone, Team
from tests.workflows.going import NEVER_S, commits, go, payload, recorded, sessions, statuses, step
from tests.workflows.scene import ID, lay, shell


@pytest.fixture
def clone(team: Team) -> Clone:
    """A clone on a store that has a head, with models a, b and c that run what their steps say."""
    made = team.clone("one")
    for name in "abc":
        shell(made.repo, name)
    made.push()
    return made


def test_steps_run_in_order_and_hand_on_their_data(clone: Clone):
    lay(
        clone.repo,
        """
        - name: first
          steps:
            - {name: say, model: a, method: execute, inputs: {run: "echo ${{ inputs.word }}"}}
            - name: hear
              model: b
              method: execute
              depends_on: [say]
              inputs: {run: 'echo heard ${{ steps.say.data.result.attributes.stdout }}'}
        - name: second
          depends_on: [first]
          steps:
            - name: sure
              assert:
                - ${{ steps.hear.data.result.attributes.stdout.contains("heard hello") }}
                - ${{ steps.say.data.log.version == 1 && run.workflow == "nightly" }}
        """,
        "inputs: {word: {type: string}}\ntags: {team: infra}\n",
    )

    run = go(clone, word="hello").run

    assert statuses(run) == {"say": "succeeded", "hear": "succeeded", "sure": "succeeded"}
    assert run.status == "succeeded"
    assert recorded(clone, run.run_id) == run
    assert (run.inputs, run.tags, run.workflow_id) == ({"word": "hello"}, {"team": "infra"}, ID)
    with Records(clone.repo) as records:
        output = records.outputs.get(step(run, "hear").output)
        assert (output.run, output.workflow, output.job, output.step) == (run.run_id, "nightly", "first", "hear")
        assert {row.step for row in records.catalog.find(run=run.run_id)} == {"say", "hear"}


def test_f037_each_step_is_one_push_and_the_last_one_carries_the_end_of_the_run(clone: Clone, team: Team):
    lay(
        clone.repo,
        """
        - name: one
          steps:
            - {name: x, model: a, method: execute}
            - {name: y, model: b, method: execute, depends_on: [x]}
            - {name: z, model: c, method: execute, depends_on: [y]}
        """,
    )
    before = commits(clone)

    run = go(clone).run

    assert commits(clone) == before + 3, "a session for each step, one push for each session, and no other"
    reader = team.clone("reader")
    reader.pull()
    assert recorded(reader, run.run_id) == run
    assert run.status == "succeeded"
    assert reader.files == clone.files


def test_a_step_that_fails_skips_what_waits_for_it_and_calls_what_waits_for_that(clone: Clone):
    lay(
        clone.repo,
        """
        - name: one
          steps:
            - {name: bad, model: a, method: execute, inputs: {run: "echo oh no >&2; exit 3"}}
            - {name: after, model: b, method: execute, depends_on: [bad]}
            - {name: tidy, model: c, method: execute, depends_on: [{step: bad, when: failed}]}
            - name: last
              assert: ${{ steps.bad.status == "failed" }}
              depends_on: [{step: after, when: always}, {step: bad, when: always}]
        - {name: two, depends_on: [one], steps: [{name: never, model: b, method: execute}]}
        """,
    )

    run = go(clone).run

    assert statuses(run) == {
        "bad": "failed",
        "after": "skipped",
        "tidy": "succeeded",
        "last": "succeeded",
        "never": "skipped",
    }
    assert (run.status, run.failed_step) == ("failed", "bad")
    assert step(run, "bad").error == "the command ended with exit code 3: oh no"
    assert [made.name for made in step(run, "bad").data] == ["log", "result"], "they say why"


def test_a_step_that_takes_too_long_is_killed_and_a_failure_that_is_allowed_fails_nothing(clone: Clone):
    lay(
        clone.repo,
        """
        - name: one
          steps:
            - {name: slow, model: a, method: execute, inputs: {run: "sleep 60", timeout: 0.2}, allow_failure: true}
            - {name: after, model: b, method: execute, depends_on: [slow]}
        """,
    )

    run = go(clone).run

    assert statuses(run) == {"slow": "failed", "after": "succeeded"}
    assert "took longer than 0.2 s" in step(run, "slow").error
    assert (run.status, run.failed_step) == ("succeeded", None)


def test_a_guard_decides_whether_a_step_or_a_job_runs(clone: Clone):
    lay(
        clone.repo,
        """
        - name: one
          steps:
            - {name: goes, model: a, method: execute, guard: "${{ inputs.deploy }}"}
            - {name: stays, model: b, method: execute, guard: "${{ !inputs.deploy }}"}
            - {name: waits, model: b, method: execute, depends_on: [stays]}
        - {name: two, guard: false, steps: [{name: never, model: c, method: execute}]}
        - {name: three, depends_on: [two], steps: [{name: nor, model: c, method: execute}]}
        """,
        "inputs: {deploy: {type: boolean}}\n",
    )

    run = go(clone, deploy=True).run

    assert statuses(run) == {
        "goes": "succeeded", "stays": "skipped", "waits": "skipped", "never": "skipped", "nor": "skipped"
    }  # fmt: skip
    assert [job.status for job in run.jobs] == ["succeeded", "skipped", "skipped"]
    assert run.status == "succeeded"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("guard: '${{ inputs.n }}'", "guard evaluates to 5, which is neither true nor false"),
        ("for_each: '${{ inputs.n }}'", "for_each evaluates to neither a list nor a mapping"),
        ("guard: '${{ inputs.m.x > 1 }}'", "there is no x"),
        ("inputs: {timeout: '${{ inputs.m }}'}", "timeout must be a number"),
        ('inputs: {run: \'${{ data.latest("a", "none").version }}\'}', "none"),
    ],
)
def test_what_comes_to_nothing_when_its_step_begins_is_that_steps_failure(clone: Clone, line, error):
    lay(
        clone.repo,
        f"""
        - name: one
          steps: [{{name: x, model: a, method: execute, {line}}}, {{name: y, model: b, method: execute}}]
        """,
        "inputs: {n: {default: 5}, m: {default: {}}}\n",
    )

    run = go(clone).run

    assert statuses(run) == {"x": "failed", "y": "succeeded"}
    assert error in step(run, "x").error


def test_a_loop_runs_its_step_for_each_model_and_each_value(clone: Clone):
    lay(
        clone.repo,
        """
        - name: one
          steps:
            - name: probe
              for_each: ${{ inputs.hosts }}
              model: ${{ each.value.model }}
              method: execute
              guard: ${{ each.key != "skip" }}
              inputs: {run: "echo ${{ each.key }}; exit ${{ each.value.code }}"}
            - name: sum
              depends_on: [{step: probe, when: always}]
              assert:
                - ${{ steps.probe.each.web.data.result.attributes.stdout.contains("web") }}
                - ${{ steps.probe.each.db.status == "failed" }}
            - {name: none, for_each: [], model: a, method: execute, depends_on: [sum]}
            - {name: end, model: a, method: execute, depends_on: [none]}
        """,
        "inputs: {hosts: {type: object}}\n",
    )
    hosts = {"web": {"model": "a", "code": 0}, "db": {"model": "b", "code": 4}, "skip": {"model": "c", "code": 0}}

    run = go(clone, hosts=hosts).run

    assert statuses(run) == {
        "probe[web]": "succeeded",
        "probe[db]": "failed",
        "probe[skip]": "skipped",
        "sum": "succeeded",
        "none": "succeeded",
        "end": "succeeded",
    }
    assert (run.status, run.failed_step) == ("failed", "probe[db]")
    assert step(run, "probe[db]").model == "b"


ALONE = "mkdir lock && sleep 0.1 && rmdir lock"
"""Fails if it runs twice at once."""


@pytest.mark.parametrize(
    ("models", "limit"),
    [
        ("aaa", ""),
        ("abc", "concurrency: 1\n"),
    ],
)
def test_two_steps_never_work_on_one_model_at_once_nor_more_than_are_allowed(clone: Clone, models, limit, monkeypatch):
    """Nor does one wait for a lease that this very process holds: here, nobody may wait at all."""
    monkeypatch.setenv("BAYOU_LOCK_TIMEOUT", "0")
    steps = [f'    - {{name: s{at}, model: {one}, method: execute, inputs: {{run: "{ALONE}"}}}}'
             for at, one in enumerate(models)]  # fmt: skip
    lay(clone.repo, "- name: one\n  steps:\n" + "\n".join(steps), limit)

    assert go(clone).run.status == "succeeded"


@pytest.mark.parametrize("where", ["job", "step"])
def test_a_job_and_a_loop_have_a_limit_of_their_own(clone: Clone, where):
    job, loop = ("concurrency: 1", "") if where == "job" else ("guard: true", "concurrency: 1")
    lay(
        clone.repo,
        f"""
        - name: one
          {job}
          steps:
            - name: s
              for_each: [a, b, c]
              model: ${{{{ each.value }}}}
              method: execute
              inputs: {{run: "{ALONE}"}}
              {loop}
        """,
    )

    assert go(clone).run.status == "succeeded"


def test_steps_that_wait_for_nobody_run_side_by_side(clone: Clone):
    meet = "touch {me}; while ! test -e {other}; do sleep 0.01; done"
    lay(
        clone.repo,
        f"""
        - name: one
          steps:
            - {{name: x, model: a, method: execute, inputs: {{run: "{meet.format(me="x", other="y")}", timeout: 30}}}}
            - {{name: y, model: b, method: execute, inputs: {{run: "{meet.format(me="y", other="x")}", timeout: 30}}}}
        """,
    )

    assert go(clone).run.status == "succeeded"


def test_a_step_begins_while_the_one_before_it_is_still_pushing(clone: Clone):
    """The push of x ends only when y has begun: with the pushes in line, this would never end."""
    began, shown = [], []
    lay(
        clone.repo,
        """
        - name: one
          steps:
            - {name: x, model: a, method: execute}
            - {name: y, model: b, method: execute, depends_on: [x], inputs: {run: "touch y-began"}}
        """,
    )

    @contextmanager
    def slow(model):
        with write_session(clone.repo, models=[model]) as session:
            yield session
            if model.name == "a":
                for _ in range(3000):
                    if (clone.repo.root / "y-began").exists():
                        began.append(True)
                        break
                    time.sleep(0.01)

    going = new_run(clone.repo, "nightly")
    outcome = going.run(
        Connection(clone.repo),
        slow,
        every_s=NEVER_S,
        on_step=lambda job, record: shown.append((record.name, record.status)),
    )

    assert began == [True]
    assert outcome.run.status == "succeeded"
    assert shown == [("x", "running"), ("x", "succeeded"), ("y", "running"), ("y", "succeeded")]


def test_a_push_that_failed_is_made_up_for_at_the_end(clone: Clone, team: Team):
    lay(clone.repo, "- {name: one, steps: [{name: x, model: a, method: execute}]}")

    @contextmanager
    def broken(model):
        with Records(clone.repo) as records, write_session(clone.repo, models=[model]) as session:
            yield Unpushed(session, records)
            raise Unavailable("the store is away")

    class Unpushed:
        """A session whose own records are not pushed: what it wrote is left to the end of the run."""

        def __init__(self, session, records):
            self.leases, self.environment, self.records = session.leases, session.environment, records
            self.pulled = self.pushed = None

    outcome = new_run(clone.repo, "nightly").run(Connection(clone.repo), broken, every_s=NEVER_S)

    assert outcome.run.status == "succeeded"
    assert outcome.unpushed is None
    reader = team.clone("reader")
    reader.pull()
    assert recorded(reader, outcome.run.run_id) == outcome.run


def test_a_lease_that_cannot_be_had_is_the_steps_failure(clone: Clone, monkeypatch):
    monkeypatch.setenv("BAYOU_LOCK_TIMEOUT", "0")
    lay(
        clone.repo,
        "- {name: one, steps: [{name: x, model: a, method: execute}, {name: y, model: b, method: execute}]}",
    )
    with write_session(clone.repo, models=[find_model(clone.repo, "a").ref]):
        run = go(clone).run

    assert statuses(run) == {"x": "failed", "y": "succeeded"}
    assert "is held by" in step(run, "x").error


def test_nothing_of_the_environment_is_in_any_record(clone: Clone, monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cr3t-value")
    lay(
        clone.repo,
        """
        - name: one
          steps:
            - name: x
              model: a
              method: execute
              inputs: {run: 'echo "$T" >&2; exit 1', env: {T: "${{ env.TOKEN }}"}}
            - {name: y, assert: '${{ env.TOKEN == "" }}', message: "not ${{ env.TOKEN }}"}
            - {name: z, for_each: ['${{ env.TOKEN }}'], model: b, method: execute}
        """,
    )

    run = go(clone).run

    assert statuses(run) == {"x": "failed", "y": "failed", "z[0]": "succeeded"}
    assert step(run, "x").error == "the command ended with exit code 1: ***"
    assert step(run, "y").error == "not ***"
    kept = payload(clone, "workflow-runs", "workflows-evaluated", "definitions-evaluated", "outputs")
    assert len(kept) == 6
    assert [path for path, data in kept.items() if b"s3cr3t" in data] == []


def test_a_key_of_many_lines_is_in_no_file_of_a_run(clone: Clone, monkeypatch):
    """17.11: errors quote it escaped, collapsed and cut; logs and results are pushed, too."""
    monkeypatch.setenv("DEPLOY_KEY", PEM)
    lay(
        clone.repo,
        """
        - name: one
          steps:
            - name: x
              model: a
              method: execute
              inputs: {run: 'echo "$T" | tr "\\n" " " >&2; echo "$T"; exit 1', env: {T: "${{ env.DEPLOY_KEY }}"}}
            - {name: y, assert: '${{ env.DEPLOY_KEY }}'}
            - {name: z, guard: '${{ env.DEPLOY_KEY }}', model: b, method: execute}
            - {name: t, model: b, method: execute, inputs: {timeout: "${{ env.DEPLOY_KEY }}"}}
            - {name: u, model: '${{ env.DEPLOY_KEY }}', method: execute}
            - {name: v, for_each: ['${{ env.DEPLOY_KEY }}'], model: b, method: execute}
        """,
    )

    run = go(clone).run

    assert statuses(run) == {
        "x": "failed",
        "y": "failed",
        "z": "failed",
        "t": "failed",
        "u": "failed",
        "v[0]": "succeeded",
    }
    assert leaked("\n".join(str(one.error) for job in run.jobs for one in job.steps)) == []
    told = {path for path, data in clone.files.items() if leaked(data.decode(errors="replace"))}
    assert told == set()


def test_what_a_workflow_was_is_kept_with_its_run(clone: Clone):
    lay(
        clone.repo,
        """
        - name: one
          steps: [{name: x, model: a, method: execute, inputs: {run: 'echo ${{ inputs.n }} ${{ run.id }}'}}]
        """,
        "inputs: {n: {default: 5}}\n",
    )

    run = go(clone).run

    with Records(clone.repo) as records:
        kept = records.evaluated.get_workflow(ID, run.run_id)
    assert kept["inputs"] == {"n": 5}
    assert kept["jobs"][0]["steps"][0]["inputs"] == {"run": f"echo 5 {run.run_id}"}


@pytest.mark.parametrize(
    ("jobs", "inputs", "error"),
    [
        ("- {name: one, steps: [{name: x, model: nobody, method: execute}]}", {}, WorkflowInvalid),
        ("- {name: one, steps: [{name: x, model: a, method: execute, depends_on: [x]}]}", {}, WorkflowInvalid),
        ("- {name: one, steps: [{name: x, model: a, method: execute}]}", {"n": "five"}, InputInvalid),
        ("- {name: one, steps: [{name: x, model: a, method: execute}]}", {"m": 5}, InputInvalid),
    ],
)
def test_what_is_wrong_beforehand_runs_and_writes_nothing(clone: Clone, jobs, inputs, error):
    lay(clone.repo, jobs, "inputs: {n: {type: integer, default: 5}}\n")
    before = clone.files, commits(clone)

    with pytest.raises(error):
        go(clone, **inputs)

    assert (clone.files, commits(clone)) == before


def test_a_directory_datastore_runs_workflows_too(tmp_path):
    lonely = Clone(init_repo(tmp_path / "lonely"))
    shell(lonely.repo, "a", "echo hello")
    lay(lonely.repo, "- {name: one, steps: [{name: x, model: a, method: execute}]}")

    run = go(lonely).run

    assert run.status == "succeeded"
    assert recorded(lonely, run.run_id) == run


def test_offline_nothing_is_sent_and_the_next_push_has_it_all(clone: Clone, team: Team):
    lay(clone.repo, "- {name: one, steps: [{name: x, model: a, method: execute}]}")
    before = commits(clone)
    offline = Clone(replace(clone.repo, offline=True))

    run = go(offline).run

    assert (run.status, commits(clone)) == ("succeeded", before)
    clone.push()
    reader = team.clone("reader")
    reader.pull()
    assert recorded(reader, run.run_id) == run


def test_peers_can_follow_a_step_that_takes_long(clone: Clone, team: Team):
    """F116: the record of a run that goes on is pushed now and then, and is found by whoever pulls."""
    lay(
        clone.repo,
        "- {name: one, steps: [{name: x, model: a, method: execute, inputs: {run: "
        '"while ! test -e seen; do sleep 0.01; done", timeout: 60}}]}',
    )
    reader = team.clone("reader")
    found: list[str] = []

    def follow() -> None:
        while not found:
            reader.pull()
            with Records(reader.repo) as records:
                rows, _ = records.runs.search(status="running")
                if rows and statuses(records.runs.get(rows[0].run_id)) == {"x": "running"}:
                    found.append(rows[0].run_id)
        (clone.repo.root / "seen").touch()

    follower = threading.Thread(target=follow)
    follower.start()
    run = go(clone, every_s=0.05).run
    follower.join()

    assert found == [run.run_id]
    reader.pull()
    assert recorded(reader, run.run_id).status == "succeeded"


def test_f127_a_search_opens_no_run(clone: Clone, monkeypatch):
    lay(clone.repo, "- {name: one, steps: [{name: x, assert: '${{ inputs.word == \"good\" }}'}]}",
        "inputs: {word: {}}\ntags: {team: infra}\n")  # fmt: skip
    good, bad = go(clone, word="good").run, go(clone, word="bad").run
    with Records(clone.repo) as records:
        records.catalog.refresh()
        monkeypatch.setattr("bayou.worktree.tree.Worktree.open", lambda *_: pytest.fail("a file was opened"))

        def search(*text: str, **what: Any) -> list[str]:
            return [row.run_id for row in records.runs.search(*text, **what)[0]]

        assert search(status="failed") == [bad.run_id]
        assert search("BAD") == [bad.run_id]
        assert search(workflow="nightly", tags={"team": "infra"}) == [bad.run_id, good.run_id]
        assert search(limit=1) == [bad.run_id]
        assert search(since=bad.started_at) == [bad.run_id]
        assert search(tags={"team": "other"}) == []


def test_sessions_are_the_callers(clone: Clone):
    """A run opens one session for each method, for its model, and none for an assertion."""
    opened = []
    lay(
        clone.repo,
        "- {name: one, steps: [{name: x, model: a, method: execute}, {name: y, assert: '${{ true }}'}]}",
    )

    def watched(model):
        opened.append(model.name)
        return sessions(clone)(model)

    new_run(clone.repo, "nightly").run(Connection(clone.repo), watched)

    assert opened == ["a"]
