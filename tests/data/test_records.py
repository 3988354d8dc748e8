"""Outputs, runs and evaluated definitions."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bayou.core.errors import NameRefused, RecordDamaged, RecordNotFound, StateError, UsageError
from bayou.data.catalog import Catalog
from bayou.data.outputs import Output
from bayou.data.records import Records
from bayou.data.runs import Run
from tests.data.models import MODEL, OTHER, visible
from tests.data.test_peers import EVALUATED, OUTPUT, RUN


def test_an_output_is_kept_with_its_model_and_listed_in_short(records: Records) -> None:
    kept = records.outputs.save(MODEL, OUTPUT)
    assert (kept.model, kept.model_id, kept.type) == ("main", MODEL.id, "net/vpc")
    assert records.outputs.get(OUTPUT.id) == kept
    assert (records.tree.root / f"outputs/net/vpc/{MODEL.id}/{OUTPUT.id}.yaml").exists()
    later = records.outputs.save(MODEL, replace(OUTPUT, id="b", started_at="2025-01-01T00:00:00.000Z"))
    records.outputs.save(OTHER, replace(OUTPUT, id="c"))
    assert [row.id for row in records.outputs.list(MODEL)] == [later.id, OUTPUT.id]
    row = records.outputs.list(MODEL)[1]
    assert (row.method, row.status, row.data, row.tags) == ("plan", "succeeded", OUTPUT.data, {"a": "b"})


def test_an_output_is_saved_again_when_more_is_known(records: Records) -> None:
    records.outputs.save(MODEL, replace(OUTPUT, status="running"))
    kept = records.outputs.save(MODEL, replace(OUTPUT, status="failed", error="no such host"))
    assert records.outputs.get(OUTPUT.id) == kept
    assert [(row.status, row.error) for row in records.outputs.list(MODEL)] == [("failed", "no such host")]


def test_runs_are_searched_without_a_look_at_any_file(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        records.runs.save(
            replace(
                RUN,
                run_id=f"01HZ{number:022d}",
                workflow="nightly" if number % 2 else "weekly",
                status="failed" if number % 5 == 0 else "succeeded",
                started_at=f"2024-01-{number + 1:02d}T00:00:00.000Z",
                inputs={"day": f"day-{number}"},
                tags={"env": "prod" if number < 10 else "test"},
            )
        )
    records.runs.search()
    monkeypatch.setattr(type(records.tree), "open", lambda self, path: pytest.fail(f"opened {path}"))

    def found(**filters: object) -> list[int]:
        rows, total = records.runs.search(**filters)  # type: ignore[arg-type]
        assert total >= len(rows)
        return [int(row.run_id[4:]) for row in rows]

    assert found(status="failed") == [15, 10, 5, 0]
    assert found(since="2024-01-19T00:00:00.000Z") == [19, 18]
    assert found(workflow="nightly", status="failed") == [15, 5]
    assert found(tags={"env": "prod"}, status="failed") == [5, 0]
    assert found(text="day-7") == [7]
    assert found(limit=3) == [19, 18, 17]
    assert records.runs.search(limit=3)[1] == 20


def test_a_run_is_kept_whole_and_changes(records: Records) -> None:
    records.runs.save(RUN)
    assert records.runs.get(RUN.run_id) == RUN
    done = replace(RUN, status="succeeded", finished_at="2024-01-02T04:00:00.000Z", jobs=())
    records.runs.save(done)
    assert records.runs.get(RUN.run_id) == done
    records.runs.delete(RUN.run_id)
    for call in (records.runs.get, records.runs.delete):
        with pytest.raises(RecordNotFound, match=f"no run {RUN.run_id}"):
            call(RUN.run_id)


def test_evaluated_definitions_are_kept_by_output_and_run(records: Records) -> None:
    records.evaluated.save_definition(MODEL, "o1", EVALUATED)
    records.evaluated.save_workflow("wf", "r1", {"a": 1})
    records.evaluated.save_workflow("wf", None, {"a": 2})
    assert records.evaluated.get_definition(MODEL, "o1") == EVALUATED
    assert records.evaluated.get_workflow("wf", "r1") == {"a": 1}
    assert records.evaluated.get_workflow("wf") == {"a": 2}
    assert not records.evaluated.was_deleted(MODEL.type, MODEL.id)
    records.evaluated.record_deleted(MODEL)
    assert records.evaluated.was_deleted(MODEL.type, MODEL.id)


def test_what_nobody_kept_is_said_so(records: Records) -> None:
    for call in (
        lambda: records.outputs.get("o"),
        lambda: records.evaluated.get_definition(MODEL, "o"),
        lambda: records.evaluated.get_workflow("wf"),
        lambda: records.evaluated.get_workflow("wf", "r"),
    ):
        with pytest.raises(RecordNotFound, match="there is no"):
            call()
    assert records.outputs.list(MODEL) == []


def test_ids_that_cannot_be_files_and_values_that_cannot_be_kept_are_refused_before_anything_is_written(
    records: Records,
) -> None:
    for call, error in (
        (lambda: records.outputs.save(MODEL, replace(OUTPUT, id="../x")), NameRefused),
        (lambda: records.runs.save(replace(RUN, run_id="a/b")), NameRefused),
        (lambda: records.runs.save(replace(RUN, workflow_id="")), NameRefused),
        (lambda: records.runs.save(replace(RUN, tags={"": "x"})), NameRefused),
        (lambda: records.outputs.save(MODEL, replace(OUTPUT, inputs={"x": b"bytes"})), UsageError),
        (lambda: records.outputs.save(MODEL, replace(OUTPUT, inputs={"x": float("nan")})), UsageError),
        (lambda: records.evaluated.save_definition(MODEL, "deleted", {}), NameRefused),
        (lambda: records.evaluated.save_workflow("wf", "evaluated", {}), NameRefused),
    ):
        with pytest.raises(error):
            call()
    assert not records.tree.root.exists() or not any(records.tree.root.iterdir())


def test_records_that_do_not_parse_are_named_and_hide_no_other(records: Records) -> None:
    records.outputs.save(MODEL, OUTPUT)
    bad_output, bad_run = f"outputs/net/vpc/{MODEL.id}/bad.yaml", "workflow-runs/wf-1/bad.yaml"
    records.runs.save(RUN)
    records.tree.write(bad_output, b"id: [")
    records.tree.write(bad_run, b"status: 5\n")
    assert [row.id for row in records.outputs.list(MODEL)] == [OUTPUT.id]
    assert records.runs.search()[1] == 1
    assert sorted(one.path for one in records.catalog.bad()) == [bad_output, bad_run]


@pytest.mark.parametrize(
    "fields",
    [{"inputs": [1]}, {"jobs": [{"name": "x"}]}, {"jobs": [{"name": "x", "status": "y", "steps": [{"odd": 1}]}]}],
)
def test_a_run_that_was_damaged_since_it_was_listed_is_named(records: Records, fields: dict[str, object]) -> None:
    path = f"workflow-runs/{RUN.workflow_id}/{RUN.run_id}.yaml"
    with pytest.raises(RecordDamaged, match=path):
        Run.from_document({**RUN.to_document(), "jobs": [], **fields}, path)


def test_an_output_with_wrong_inputs_is_named() -> None:
    path = f"outputs/net/vpc/{MODEL.id}/{OUTPUT.id}.yaml"
    with pytest.raises(RecordDamaged, match="inputs"):
        Output.from_document({**OUTPUT.to_document(), "data": [], "inputs": [1]}, path)


def test_a_catalog_that_cannot_be_written_does_not_undo_what_is_done(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Catalog, **_: object) -> None:
        raise StateError("catalog.db: disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "change", full)
        saved = records.data.save(MODEL, "x", b"1")
        records.runs.save(RUN)
    assert saved.version == 1
    assert visible(records) == {("main", "x", 1): b"1"}
    assert records.runs.search()[1] == 1
