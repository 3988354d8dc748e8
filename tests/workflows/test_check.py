"""Validation: cycles, models, methods, arguments, expressions and inputs, with file and line; nothing is written."""

from __future__ import annotations

import pytest

from bayou.core.errors import InputInvalid, WorkflowInvalid
from bayou.repo import Repo, init_repo
from bayou.workflows.check import evaluated_workflow, resolve_inputs, validate_workflows
from bayou.workflows.find import find_workflow
from bayou.workflows.run import new_run
from tests.workflows.scene import lay, shell, workflow


@pytest.fixture
def repo(tmp_path) -> Repo:
    repo = init_repo(tmp_path / "repo")
    shell(repo, "disk", "df")
    shell(repo, "web", "true")
    return repo


def told(repo: Repo, jobs: str, head: str = "") -> list[str]:
    lay(repo, jobs, head)
    _, problems = validate_workflows(repo)
    return [str(one).removeprefix("workflows/nightly.yaml, ") for one in problems]


def step(*more: str) -> str:
    return "- name: one\n  steps:\n    - name: a\n      model: disk\n      method: execute\n" + "".join(
        f"      {line}\n" for line in more
    )


@pytest.mark.parametrize(
    ("jobs", "problem"),
    [
        (step().replace("model: disk", "model: dsk"), "line 7: there is no model dsk"),
        (step().replace("execute", "exeute"), "line 8: command/shell has no method exeute"),
        (step("inputs: {run: 5}"), "line 9: run must be a text, not 5"),
        (
            step("inputs:", "  env: {A: b}", "  tmeout: 5"),
            "line 11: disk execute: there is no input tmeout",
        ),
        (step("inputs: {timeout: '${{ inputs.none }}'}"), "line 9: there is no input none"),
        (step("inputs: {run: '${{ nonsense }}'}"), "line 9: there is no name nonsense"),
        (step("inputs: {run: '${{ 1 + }}'}"), "line 9: '1 +' is no CEL expression"),
        (step("inputs: {run: '${{ 1'}"), "line 9: an expression has no end"),
        (step("inputs: {run: '${{ each.value }}'}"), "line 9: there is no name each"),
        (step("inputs: {run: '${{ steps.b.data }}'}"), "line 9: there is no step b"),
        (step("inputs: {run: '${{ steps.a.data }}'}"), "line 9: a need not have ended by then"),
        (step("guard: '${{ inputz.x }}'"), "line 9: there is no name inputz"),
        (step("depends_on: [a]"), "line 9: steps wait for each other: a → a"),
        (
            step("for_each: [web, nobody]").replace("model: disk", "model: '${{ each.value }}'"),
            "line 7: there is no model nobody",
        ),
    ],
)
def test_a_problem_is_told_with_its_line(repo, jobs, problem):
    found = told(repo, jobs)

    assert len(found) == 1, found
    assert found[0].startswith(problem)


def test_all_problems_of_a_steps_inputs_are_told_each_with_its_line(repo):
    found = told(repo, step("inputs:", "  run: 5", "  rnu: x", "  timeout: abc", "  xyz: 3"))

    assert found == [
        "line 10: run must be a text, not 5",
        "line 11: disk execute: there is no input rnu",
        'line 12: timeout must be a number, not "abc"',
        "line 13: disk execute: there is no input xyz",
    ]


def test_problems_of_the_model_hide_none_of_the_step(repo):
    file = repo.root / "models/command/shell/disk.yaml"
    file.write_text(file.read_text().replace("run: df", "run: 5\n  timeout: abc\n  env: ${{ 1 + }}"))

    found = told(repo, step("inputs: {rnu: x}"))

    assert len(found) == 4, found
    assert [one.partition(": ")[0] for one in found] == ["line 8", "line 8", "line 8", "line 9"]
    assert sum("disk.yaml, line " in one for one in found) == 3
    assert found[3] == "line 9: disk execute: there is no input rnu"


def test_a_run_counts_the_problems_that_validate_tells(repo):
    found = told(repo, step("inputs: {rnu: x, xyz: 3}", "guard: 5", "depends_on: [b]"))

    assert len(found) == 4, found
    with pytest.raises(WorkflowInvalid, match=r"\(and 3 more\)") as told_by_run:
        new_run(repo, "nightly")
    assert told_by_run.value.hint is not None
    assert "`bayou workflow validate nightly` tells all" in told_by_run.value.hint


def test_what_reads_only_the_file_does_not_count_its_problems(repo):
    told(repo, step("inputs: {rnu: x, xyz: 3}", "guard: 5", "depends_on: [b]"))

    with pytest.raises(WorkflowInvalid, match=r"\(and more\)$"):
        find_workflow(repo, "nightly")


def test_an_unknown_type_is_told(repo):
    (repo.root / "models/command/shell/disk.yaml").rename(repo.root / "models/disk.yaml")
    file = repo.root / "models/strange/disk.yaml"
    file.parent.mkdir()
    text = (repo.root / "models/disk.yaml").read_text()
    (repo.root / "models/disk.yaml").unlink()
    file.write_text(text.replace("command/shell", "strange"))

    assert told(repo, step())[0].startswith("line 8: there is no type strange")


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        ("inputs: {a: {type: strng}}", "line 3: a is no JSON schema"),
        (
            "inputs: {a: {type: integer, default: x}}",
            'line 3: the default does not fit: a must be a whole number, not "x"',
        ),
        ("inputs: {a: {default: '${{ env.A }}'}}", "line 3: the default of a is an expression"),
        ("inputs: {a: 5}", "line 3: a is no schema"),
        ("inputs: {a-b: {}}", "line 3: an input cannot be called a-b"),
    ],
)
def test_a_bad_input_is_told(repo, head, problem):
    found = told(repo, step(), f"{head}\n")

    assert len(found) == 1, found
    assert found[0].startswith(problem)


def test_a_good_workflow_has_no_problems(repo):
    assert (
        told(
            repo,
            """
            - name: one
              guard: ${{ inputs.n > 0 }}
              steps:
                - {name: a, model: disk, method: execute, inputs: {timeout: "${{ inputs.n }}"}}
                - name: b
                  for_each: ${{ steps.a.data.result.attributes.hosts }}
                  model: ${{ each.value }}
                  method: execute
                  depends_on: [a]
                  inputs: {run: "echo ${{ each.key }} ${{ run.id }} ${{ env.HOME }}"}
            - name: two
              depends_on: [{job: one, when: always}]
              steps:
                - {name: sure, assert: ['${{ steps.a.status == "succeeded" }}'], message: "${{ steps.a.error }}"}
            """,
            "inputs: {n: {type: integer, default: 5}}\n",
        )
        == []
    )


def test_a_step_of_two_earlier_jobs_must_be_told_apart(repo):
    one = "steps: [{name: a, model: disk, method: execute}]"
    found = told(
        repo,
        f"""
        - {{name: one, {one}}}
        - {{name: two, {one}}}
        - {{name: three, depends_on: [one, two], steps: [{{name: c, assert: '${{{{ steps.a.status == "x" }}}}'}}]}}
        """,
    )

    assert found == ["line 6: a is a step of one and of two"]


def test_validation_writes_nothing(repo):
    before = {path: path.stat().st_mtime_ns for path in repo.root.rglob("*")}

    assert told(repo, step("inputs: {run: 5}"))

    after = {path: path.stat().st_mtime_ns for path in repo.root.rglob("*")}
    changed = {path.relative_to(repo.root).as_posix() for path in after if before.get(path) != after[path]}
    assert changed == {"workflows", "workflows/nightly.yaml"}


INPUTS = """
inputs:
  host: {type: string, default: localhost}
  count: {type: integer, minimum: 1}
  tags: {type: array, items: {type: string}, default: []}
"""


@pytest.mark.parametrize(
    ("texts", "meant"),
    [
        ({"count": "3"}, {"host": "localhost", "count": 3, "tags": []}),
        ({"count": "3", "host": "5"}, {"host": "5", "count": 3, "tags": []}),
        ({"count": "3", "tags": '["a"]'}, {"host": "localhost", "count": 3, "tags": ["a"]}),
    ],
)
def test_texts_become_what_the_schema_asks_for(texts, meant):
    assert resolve_inputs(workflow(step(), INPUTS), {}, texts) == meant


@pytest.mark.parametrize(
    ("given", "texts", "message"),
    [
        ({}, {}, "count is missing"),
        ({}, {"count": "x"}, 'count must be a whole number, not "x"'),
        ({}, {"count": "0"}, "count: 0 is less than the minimum of 1"),
        ({"count": "5"}, {}, 'count must be a whole number, not "5"'),
        ({}, {"count": "1", "hst": "x"}, "unknown argument hst"),
        ({"count": 1, "tags": [1]}, {}, "tags.0 must be a text, not 1"),
    ],
)
def test_an_input_of_the_wrong_type_is_refused(given, texts, message):
    with pytest.raises(InputInvalid, match=message):
        resolve_inputs(workflow(step(), INPUTS), given, texts)


def test_what_is_evaluated_leaves_what_is_not_known_yet_and_hides_the_environment(monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cr3t-value")
    found = workflow(
        step("inputs:", "  run: echo ${{ inputs.n + 1 }} ${{ env.TOKEN }}", "  env: {A: '${{ steps.z.status }}'}"),
        "inputs: {n: {type: integer}}\n",
    )

    (job,) = evaluated_workflow(found, {"n": 4})["jobs"]

    assert job["steps"][0]["inputs"] == {"run": "echo 5 ***", "env": {"A": "${{ steps.z.status }}"}}
