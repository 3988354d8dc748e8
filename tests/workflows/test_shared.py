"""End to end on a real S3 server: what one machine runs, another one has, exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bayou.cli import run
from bayou.data.catalog.rows import VersionRow
from bayou.data.layout import ModelRef
from bayou.data.records import Records
from bayou.repo import init_repo
from bayou_testing.proxy import HttpProxy
from tests.session.commands import Commands
from tests.sync.conftest import Clone, Team
from tests.workflows.going import payload
from tests.workflows.scene import lay, shell

pytestmark = pytest.mark.s3

ROOTS = ("data", "outputs", "workflow-runs", "workflows-evaluated", "definitions-evaluated")


def rows(clone: Clone) -> dict[str, object]:
    """Return everything that the records of a clone say."""
    with Records(clone.repo) as records:
        records.catalog.refresh()
        versions = records.catalog.find(all_versions=True)
        runs, total = records.runs.search()
        outputs = [records.outputs.get(row.output) for row in versions if row.output]
        return {
            "versions": versions,
            "content": [records.data.read(records.data.get(ref(row), row.name, row.version)) for row in versions],
            "outputs": outputs,
            "runs": [records.runs.get(row.run_id) for row in runs],
            "total": total,
        }


def ref(row: VersionRow) -> ModelRef:
    return ModelRef(row.type, row.model_id, row.model)


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]):
    """Run a command in this process, in a clone; return its document."""

    def call(clone: Clone, *arguments: str) -> Any:
        capsys.readouterr()
        code = run([*arguments, "--repo", str(clone.repo.root), "--json"])
        out, err = capsys.readouterr()
        assert code == 0, err
        return json.loads(out)

    return call


def test_a_fresh_reader_sees_what_a_writer_ran_deleted_and_renamed(
    s3_team: Team, commands: Commands, proxy: HttpProxy, here
):
    writer = s3_team.clone("writer")
    shell(writer.repo, "usage", 'echo "{\\"free\\": 5}"')
    shell(writer.repo, "check", "echo fine")
    lay(writer.repo, "- {name: one, steps: [{name: only, model: usage, method: execute}]}", name="single",
        workflow_id="7f3c0000-0000-4000-8000-000000000001")  # fmt: skip
    lay(
        writer.repo,
        """
        - name: collect
          steps:
            - {name: usage, model: usage, method: execute}
            - {name: check, model: check, method: execute, depends_on: [usage]}
        - name: report
          depends_on: [collect]
          steps:
            - name: each
              for_each: [usage, check]
              model: ${{ each.value }}
              method: execute
              inputs: {run: "echo ${{ each.key }} ${{ steps.usage.data.result.version }}"}
            - {name: bad, model: check, method: execute, inputs: {run: "exit 5"}, allow_failure: true}
        """,
    )
    writer.push()
    for name in ("single", "nightly"):
        ran = commands.run(writer, "workflow", "run", name, "--json")
        assert ran.code == 0, ran.out + ran.err
        assert ran.document["status"] == "succeeded"

    reader = Clone(init_repo(s3_team.root / "reader"))
    here(reader, "datastore", "setup", s3_team.url, "--option", f"endpoint={proxy.url}")
    reader.reopen()

    assert payload(reader, *ROOTS) == payload(writer, *ROOTS)
    assert rows(reader) == rows(writer)
    found = rows(reader)
    assert isinstance(found["outputs"], list)
    assert found["total"] == 2
    assert len(found["outputs"]) == 2 * 6, "two items for each of six methods"
    search = here(reader, "workflow", "run", "search", "--workflow", "nightly")
    got = here(reader, "workflow", "run", "get", search["runs"][0]["run_id"])
    assert [step["status"] for job in got["jobs"] for step in job["steps"]] == ["succeeded"] * 4 + ["failed"]

    here(writer, "data", "rename", "check", "log", "journal")
    here(writer, "data", "delete", "usage", "result", "-y")
    here(writer, "workflow", "delete", "single", "-y")
    reader.pull()

    assert payload(reader, *ROOTS) == payload(writer, *ROOTS)
    assert rows(reader) == rows(writer)
    listed = here(reader, "data", "list")["items"]
    assert sorted((one["model"], one["name"]) for one in listed) == [
        ("check", "journal"),
        ("check", "result"),
        ("usage", "log"),
    ]
    assert here(reader, "workflow", "run", "search")["total"] == 1
    assert not list((writer.repo.root / "workflows").glob("single*"))


def test_f078_f094_what_only_looks_sends_no_request(s3_team: Team, proxy: HttpProxy, here):
    clone = s3_team.clone("one")
    shell(clone.repo, "a")
    lay(clone.repo, "- {name: one, steps: [{name: x, model: a, method: execute}]}")
    run_id = here(clone, "workflow", "run", "nightly")["run_id"]
    assert proxy.log.rows()
    proxy.log.clear()

    here(clone, "workflow", "create", "other")
    here(clone, "workflow", "list")
    here(clone, "workflow", "get", "nightly")
    here(clone, "workflow", "validate")
    here(clone, "workflow", "run", "search")
    here(clone, "workflow", "run", "get", run_id)

    assert proxy.log.rows() == []
