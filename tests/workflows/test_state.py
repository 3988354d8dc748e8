"""How far a run has come: tables, without running anything."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bayou.core.errors import WorkflowInvalid
from bayou.data.runs import JobRecord, Run, StepRecord
from bayou.workflows.state import LoopElement, State, elements, names
from tests.workflows.scene import ID, workflow

PLAIN = "model: m, method: x"


def state(jobs: str, **statuses: str) -> State:
    """Return a state in which the steps that are named have come to something."""
    found = State(workflow(jobs))
    for job, step in found.workflow.steps():
        if step.name in statuses:
            key = job.name, step.name
            found.put(key, replace(found.records[key][step.name], status=statuses[step.name]))
    return found


def verdict(found: State, name: str) -> str:
    job, step = next((job, step) for job, step in found.workflow.steps() if step.name == name)
    return found.step_verdict(job, step)


@pytest.mark.parametrize(
    ("when", "status", "meant"),
    [
        ("succeeded", "pending", "wait"),
        ("succeeded", "running", "wait"),
        ("succeeded", "succeeded", "go"),
        ("succeeded", "failed", "skip"),
        ("succeeded", "skipped", "skip"),
        ("succeeded", "cancelled", "wait"),
        ("always", "cancelled", "wait"),
        ("failed", "succeeded", "skip"),
        ("failed", "failed", "go"),
        ("failed", "skipped", "skip"),
        ("always", "running", "wait"),
        ("always", "succeeded", "go"),
        ("always", "failed", "go"),
        ("always", "skipped", "go"),
    ],
)
def test_an_edge_opens_as_its_when_says(when, status, meant):
    jobs = f"""
        - name: one
          steps:
            - {{name: a, {PLAIN}}}
            - {{name: b, {PLAIN}, depends_on: [{{step: a, when: {when}}}]}}
    """

    assert verdict(state(jobs, a=status), "b") == meant


def test_a_failure_that_is_allowed_opens_both_ways_and_fails_nothing():
    jobs = f"""
        - name: one
          steps:
            - {{name: a, {PLAIN}, allow_failure: true}}
            - {{name: b, {PLAIN}, depends_on: [a]}}
            - {{name: c, {PLAIN}, depends_on: [{{step: a, when: failed}}]}}
    """
    found = state(jobs, a="failed", b="succeeded", c="succeeded")

    assert (verdict(found, "b"), verdict(found, "c")) == ("go", "go")
    assert found.run_status() == "succeeded"
    assert found.failed_step() is None


def test_one_edge_that_cannot_open_is_enough_to_skip_though_another_waits():
    jobs = f"""
        - name: one
          steps:
            - {{name: a, {PLAIN}}}
            - {{name: b, {PLAIN}}}
            - {{name: c, {PLAIN}, depends_on: [a, b]}}
    """

    assert verdict(state(jobs, a="failed"), "c") == "skip"


def test_what_can_no_longer_begin_is_skipped_with_all_that_waits_for_it():
    jobs = f"""
        - name: one
          steps:
            - {{name: a, {PLAIN}}}
            - {{name: b, {PLAIN}, depends_on: [a]}}
            - {{name: c, {PLAIN}, depends_on: [b]}}
            - {{name: tidy, {PLAIN}, depends_on: [{{step: c, when: always}}]}}
        - {{name: two, depends_on: [one], steps: [{{name: d, {PLAIN}}}]}}
        - {{name: three, depends_on: [{{job: one, when: failed}}], steps: [{{name: e, {PLAIN}}}]}}
    """
    found = state(jobs, a="failed")
    found.skip_unreachable()
    assert [job.status for job in found.jobs()] == ["running", "pending", "pending"], "tidy is still to run"

    found.put(("one", "tidy"), StepRecord("tidy", "succeeded"))
    found.skip_unreachable()

    one, two, three = found.jobs()
    assert [step.status for step in one.steps] == ["failed", "skipped", "skipped", "succeeded"]
    assert (one.status, two.status, three.status) == ("failed", "skipped", "pending")
    assert not found.finished(), "three waits for a failure, which has come"
    found.put(("three", "e"), StepRecord("e", "succeeded"))
    assert found.finished()
    assert (found.run_status(), found.failed_step()) == ("failed", "a")


@pytest.mark.parametrize(
    ("statuses", "meant"),
    [
        ({"a": "pending", "b": "pending"}, "pending"),
        ({"a": "succeeded", "b": "pending"}, "running"),
        ({"a": "failed", "b": "running"}, "running"),
        ({"a": "failed", "b": "succeeded"}, "failed"),
        ({"a": "failed", "b": "cancelled"}, "cancelled"),
        ({"a": "skipped", "b": "skipped"}, "skipped"),
        ({"a": "skipped", "b": "succeeded"}, "succeeded"),
    ],
)
def test_a_job_is_what_its_steps_are_together(statuses, meant):
    jobs = f"- {{name: one, steps: [{{name: a, {PLAIN}}}, {{name: b, {PLAIN}}}]}}"
    found = state(jobs, **statuses)

    assert found.job_status(found.workflow.jobs[0]) == meant


def test_a_workflow_whose_steps_were_all_skipped_has_succeeded():
    assert state(f"- {{name: one, steps: [{{name: a, {PLAIN}}}]}}", a="skipped").run_status() == "succeeded"


def test_a_loop_is_over_when_each_of_its_times_is():
    found = state(f"- {{name: one, steps: [{{name: a, {PLAIN}, for_each: [x, y]}}]}}")
    key = "one", "a"
    found.expand(key, [StepRecord("a[x]", "succeeded"), StepRecord("a[y]", "running")])
    assert found.step_status(key) == "running"

    found.put(key, StepRecord("a[y]", "failed"))

    assert found.step_status(key) == "failed"
    assert found.failed_step() == "a[y]"


def test_a_cancelled_run_has_nothing_left_that_runs():
    found = state(f"- {{name: one, steps: [{{name: a, {PLAIN}}}, {{name: b, {PLAIN}}}]}}", a="succeeded")
    found.cancel()

    assert [step.status for step in found.jobs()[0].steps] == ["succeeded", "cancelled"]
    assert found.run_status() == "cancelled"


def test_what_succeeded_before_is_kept_and_nothing_else():
    found = state(f"""
        - name: one
          steps: [{{name: a, {PLAIN}}}, {{name: b, {PLAIN}}}, {{name: c, {PLAIN}, for_each: [x, y]}}]
    """)
    old = (
        StepRecord("a", "succeeded", output="1"),
        StepRecord("b", "failed"),
        StepRecord("c[x]", "succeeded"),
        StepRecord("c[y]", "failed"),
    )
    earlier = Run("r", ID, "nightly", "failed", "2026-01-01T00:00:00.000Z", jobs=(JobRecord("one", "failed", old),))

    kept = found.keep(earlier)

    assert set(kept) == {(("one", "a"), "a"), (("one", "c"), "c[x]")}
    assert [step.status for step in found.jobs()[0].steps] == ["succeeded", "pending", "pending"]
    assert found.records["one", "a"]["a"].output == "1"


@pytest.mark.parametrize(
    ("value", "meant", "called"),
    [
        (["web", "db"], [LoopElement(0, "web"), LoopElement(1, "db")], ["s[web]", "s[db]"]),
        (["web", "web"], [LoopElement(0, "web"), LoopElement(1, "web")], ["s[0]", "s[1]"]),
        ([{"a": 1}, 5], [LoopElement(0, {"a": 1}), LoopElement(1, 5)], ["s[0]", "s[1]"]),
        ({"x": 1, "y": 2}, [LoopElement("x", 1), LoopElement("y", 2)], ["s[x]", "s[y]"]),
        ([], [], []),
    ],
)
def test_a_loop_goes_over_lists_and_mappings(value, meant, called):
    found = elements(value, "here")

    assert found == meant
    assert names("s", found) == called


@pytest.mark.parametrize("value", ["web", 5, None, True])
def test_a_loop_goes_over_nothing_else(value):
    with pytest.raises(WorkflowInvalid, match="neither a list nor a mapping"):
        elements(value, "here")
