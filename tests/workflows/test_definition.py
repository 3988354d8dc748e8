"""Reading workflows: what is wrong is told with file, line and the nearest known word."""

from __future__ import annotations

import pytest

from bayou.core.errors import WorkflowExists, WorkflowInvalid, WorkflowNotFound
from bayou.repo import Repo, init_repo
from bayou.workflows.definition import Edge, parse_source
from bayou.workflows.find import create_workflow, find_workflow, list_workflows
from bayou.workflows.read import before, check_graph
from tests.workflows.scene import ID, lay, read, workflow

ISSUE = """
- name: collect
  steps:
    - name: usage
      model: disk-usage
      method: execute
      inputs: {env: {HOST: "${{ inputs.host }}"}}
    - name: check
      model: disk-check
      method: execute
      depends_on: [usage]            # or [{step: usage, when: failed}]
- name: report
  depends_on: [collect]
  steps:
    - {name: sql, model: usage-report, method: query}
"""


@pytest.fixture
def repo(tmp_path) -> Repo:
    return init_repo(tmp_path / "repo")


def told(jobs: str, head: str = "") -> list[str]:
    return [f"{one} | {one.hint}" for one in read(jobs, head)[1]]


def test_a_workflow_is_read_as_it_was_written():
    found = workflow(ISSUE, "inputs:\n  host: {type: string, default: localhost}\n")

    collect, report = found.jobs
    assert [step.name for step in collect.steps] == ["usage", "check"]
    assert collect.steps[0].inputs == {"env": {"HOST": "${{ inputs.host }}"}}
    assert collect.steps[1].depends_on == (Edge("usage", "succeeded", collect.steps[1].depends_on[0].key_path),)
    assert report.depends_on[0].on == "collect"
    assert found.source.where(collect.steps[1].depends_on[0].key_path) == "workflows/nightly.yaml, line 15"


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("depnds_on: [a]", "line 7: unknown key depnds_on | did you mean depends_on?"),
        ("depends_on: a", "line 7: depends_on must be a list | like [a]"),
        ("depends_on: [{step: a, when: done}]", "line 7: when is done | it is one of succeeded, failed, always"),
        ("depends_on: [{job: a}]", "line 7: not the name of a step | like {step: name, when: failed}"),
        ("concurrency: 0", "line 7: concurrency must be a number from 1, and not 0 | None"),
        ("allow_failure: 'yes'", "line 7: allow_failure must be true or false | None"),
        (
            "for_each: 3",
            "line 7: for_each must be a list, a mapping, or an expression that is one | None",
        ),
        ("guard: 3", "line 7: guard must be an expression, true or false | like ${{ inputs.deploy }}"),
        ("message: x", "line 7: only a step that asserts has a message | None"),
        ("inputs: [x]", "line 7: inputs must be a mapping of names to values | None"),
    ],
)
def test_what_is_wrong_with_a_step_is_told_with_its_line(step, problem):
    assert told(f"- name: one\n  steps:\n    - {{name: a, model: m, method: x}}\n    - {step}\n      name: b\n"
                "      model: m\n      method: x") == [f"workflows/nightly.yaml, {problem}"]  # fmt: skip


@pytest.mark.parametrize(
    ("jobs", "problem"),
    [
        ("- name: one", "line 4: a job has steps | None"),
        ("- steps: [{name: a, model: m, method: x}]", "line 4: a job has a name | None"),
        ("- {name: one, steps: []}", "line 4: steps must be a list, with something in it | None"),
        ("- {name: one, steps: [x]}", "line 4: each of steps is a mapping of keys to values | None"),
        (
            "- {name: one, steps: [{name: a, method: x}]}",
            "line 4: a step has a model | name a model and its method, or say what to assert",
        ),
        (
            "- {name: one, steps: [{name: a, model: m, method: x}, {name: a, model: m, method: x}]}",
            "line 4: there are two of the step a | rename one of them",
        ),
        (
            "- {name: one, steps: [{name: 'a[0]', model: m, method: x}]}",
            "line 4: a step cannot be called 'a[0]' | leave out brackets and slashes",
        ),
        (
            "- {name: one, steps: [{name: a, assert: '${{ true }}', model: m}]}",
            "line 4: a step that asserts has no model | make it two steps",
        ),
        (
            "- {name: one, steps: [{name: a, assert: 'true'}]}",
            "line 4: assert must be an expression | like ${{ inputs.count > 0 }}",
        ),
    ],
)
def test_what_is_wrong_with_a_job_is_told_with_its_line(jobs, problem):
    assert told(jobs) == [f"workflows/nightly.yaml, {problem}"]


def test_all_problems_are_told_and_not_only_the_first():
    found = told("- {name: one, stps: [], steps: [{name: a, modl: m, method: x}]}", "tags: {a: 1}\n")

    assert len(found) == 4
    assert "did you mean steps?" in found[0]


def test_a_name_and_an_id_must_be_those_of_the_file(repo):
    file = lay(repo, "- {name: one, steps: [{name: a, assert: '${{ true }}'}]}")
    file.write_text(file.read_text().replace("name: nightly", "name: daily"))

    with pytest.raises(WorkflowInvalid, match="line 2: name is daily, but the file's name says nightly"):
        find_workflow(repo, "nightly")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id: a: b", "workflows/bad.yaml, line 1: mapping values are not allowed"),
        (b"id: 1\nid: 2\n", "workflows/bad.yaml, line 2: id stands there twice"),
        (b"name: .nan\n", "workflows/bad.yaml, line 1: nan is no number"),
        (b"a: &a\n  b: *a\n", "workflows/bad.yaml, line .: values are nested too deeply"),
        (b"\xff\xfe\x00", "workflows/bad.yaml"),
    ],
)
def test_what_is_no_yaml_is_told_with_its_line(content, message):
    with pytest.raises(WorkflowInvalid, match=message):
        parse_source(content, "workflows/bad.yaml")


@pytest.mark.parametrize("content", ["", "[]", "text"])
def test_a_file_that_is_no_mapping_is_no_workflow(repo, content):
    (repo.root / "workflows" / "bad.yaml").write_text(content)

    with pytest.raises(WorkflowInvalid, match="not a mapping of keys to values"):
        find_workflow(repo, "bad")


def test_steps_and_jobs_that_wait_for_each_other_are_named_with_the_way_round():
    found = workflow("""
        - name: one
          depends_on: [two]
          steps:
            - {name: a, model: m, method: x, depends_on: [c]}
            - {name: b, model: m, method: x, depends_on: [a]}
            - {name: c, model: m, method: x, depends_on: [b]}
        - name: two
          depends_on: [{job: one, when: always}]
          steps: [{name: s, model: m, method: x, depends_on: [s]}]
    """)

    assert [str(one) for one in check_graph(found)] == [
        "workflows/nightly.yaml, line 5: jobs wait for each other: one → two → one",
        "workflows/nightly.yaml, line 7: steps wait for each other: a → c → b → a",
        "workflows/nightly.yaml, line 12: steps wait for each other: s → s",
    ]


def test_a_dependency_on_nobody_names_the_nearest():
    found = workflow("- {name: one, steps: [{name: usage, model: m, method: x}, "
                     "{name: b, model: m, method: x, depends_on: [usag]}]}")  # fmt: skip

    (problem,) = check_graph(found)
    assert problem.message == "b depends on a step usag: none here"
    assert problem.hint == "did you mean usage?"


def test_before_a_step_are_the_steps_of_earlier_jobs_and_those_it_waits_for():
    found = workflow("""
        - {name: one, steps: [{name: a, model: m, method: x}]}
        - {name: other, steps: [{name: z, model: m, method: x}]}
        - {name: two, depends_on: [one], steps: [{name: b, model: m, method: x}]}
        - name: three
          depends_on: [two]
          steps:
            - {name: c, model: m, method: x}
            - {name: d, model: m, method: x, depends_on: [c]}
            - {name: e, model: m, method: x, depends_on: [d]}
    """)
    three = found.jobs[-1]

    assert [step.name for _, step in before(found, three, three.steps[-1])] == ["a", "b", "c", "d"]


def test_a_made_workflow_is_valid_and_found_by_name_and_id(repo):
    made = create_workflow(repo, "über nacht: 1")

    assert find_workflow(repo, "über nacht: 1") == find_workflow(repo, made.id)
    with pytest.raises(WorkflowExists):
        create_workflow(repo, "über nacht: 1")
    with pytest.raises(WorkflowInvalid, match="a workflow cannot be called 'a/b'"):
        create_workflow(repo, "a/b")


def test_a_damaged_workflow_hides_no_other(repo):
    create_workflow(repo, "good")
    (repo.root / "workflows" / "bad.yaml").write_text("id: a: b")
    (repo.root / "workflows" / ".editor.yaml").write_text("id: a: b")

    found = list_workflows(repo)

    assert [one.name for one in found.workflows] == ["good"]
    assert [error.message.partition(":")[0] for error in found.bad] == ["workflows/bad.yaml, line 1"]


def test_a_workflow_that_is_not_there_names_the_nearest(repo):
    create_workflow(repo, "nightly")

    with pytest.raises(WorkflowNotFound) as caught:
        find_workflow(repo, "nigthly")

    assert caught.value.hint == "did you mean nightly?"
    assert find_workflow(repo, "nightly").id != ID
