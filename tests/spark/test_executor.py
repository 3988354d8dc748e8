"""Jobs of `engine.job` as tasks of Spark: the same rows, errors and deadlines as on threads of this process."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from bayou.config import SparkConfig
from bayou.core.deadline import Deadline
from bayou.core.errors import AccessDenied, DeadlinePassed
from bayou.core.progress import Stage
from bayou.engine.handle import StoreHandle
from bayou.engine.job import Needs
from bayou.engine.local import LocalExecutor
from bayou.objectstore import open_store
from bayou.objectstore.keys import Key
from bayou.objectstore.spec import StoreSpec
from bayou.spark.executor import INTERPRETED, SparkEngines, SparkExecutor, decode, encode, schema_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not see the tests


class Told(NamedTuple):
    key: str
    size: int
    etag: str | None = None
    sha256: bytes | None = None
    share: float | None = None
    there: bool = True


@dataclass(frozen=True)
class Keys:
    """Lists some directories of a store."""

    store: StoreHandle
    directories: tuple[str, ...]
    fails: str = ""
    waits: float = 0.0
    stage = Stage("listing")
    row = Told

    @property
    def needs(self) -> Needs:
        return Needs((self.store,))

    def parts(self, wanted: int) -> Sequence[str]:
        return self.directories

    def run(self, part: str) -> Iterator[Told]:
        time.sleep(self.waits)
        if part == self.fails:
            raise AccessDenied("not allowed")
        for page in self.store.open().list(Key(part)):
            yield from (Told(meta.key, meta.size, meta.etag) for meta in page)

    def fold(self, rows: Iterable[Told]) -> list[Told]:
        return sorted(rows)


def handle(root) -> StoreHandle:
    url = root.as_uri()
    return StoreHandle(open_store(url), lambda: StoreSpec.of(url, None, {}))


@pytest.fixture
def bucket(tmp_path):
    for name in ("data/a/1", "data/a/2", "data/b/1", "data/c/d/1"):
        file = tmp_path / "bucket" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return tmp_path / "bucket"


TEXT = st.text(st.characters(codec="utf-8")) | st.just("\udcff/x")
NUMBER = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.builds(Told, TEXT, NUMBER, TEXT | st.none(), st.binary() | st.none(), st.none(), st.booleans())))
def test_rows_cross_as_they_are(rows):
    assert list(decode(Told, encode(schema_of(Told), rows))) == rows if rows else True


@pytest.mark.spark
def test_a_job_gives_the_same_on_spark(spark, bucket):
    job = Keys(handle(bucket), ("data/a", "data/b", "data/c"))

    found = SparkExecutor(spark).run(job)

    assert [row.key for row in found] == ["data/a/1", "data/a/2", "data/b/1", "data/c/d/1"]
    assert found == LocalExecutor().run(job)
    assert SparkExecutor(spark).run(Keys(handle(bucket), ())) == []


@pytest.mark.spark
def test_no_code_is_compiled_for_a_job(warm):
    """A task that compiles asks for classes that do not exist: on a new server that took two minutes."""
    with SparkEngines().open(SparkConfig(), Needs(), deadline=Deadline.after(300), progress=None) as executor:
        assert {name: executor.session.conf.get(name) for name in INTERPRETED} == INTERPRETED
        assert executor.session.conf.get("spark.files.io.connectionTimeout") == "10s"


@pytest.mark.spark
def test_what_a_task_met_is_raised_as_what_it_is(spark, bucket):
    with pytest.raises(AccessDenied, match="not allowed"):
        SparkExecutor(spark).run(Keys(handle(bucket), ("data/a", "data/b"), fails="data/b"))


@pytest.mark.spark
def test_v12_a_deadline_ends_a_job_on_spark(spark, bucket):
    with pytest.raises(DeadlinePassed):
        SparkExecutor(spark, deadline=Deadline.after(2)).run(Keys(handle(bucket), ("data/a",), waits=300))
