"""Values become Arrow arrays unchanged, and without pandas, which every worker of Spark would have to import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayou.spark.arrow import BYTES, INT, TEXT, array, batch, batches, binary_array, read_parts

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

KINDS: dict[pyarrow.DataType, list[object]] = {
    TEXT: ["a", None, "ü"],
    INT: [1, None, -(1 << 63)],
    BYTES: [b"", None, b"\xff"],
    pyarrow.bool_(): [True, None, False],
    pyarrow.float64(): [1, None, 0.5],
}
KERNELS = """
import sys
from pathlib import Path
import pyarrow
from bayou.index.entry import Entry
from bayou.spark.arrow import BYTES, INT, TEXT, array, batches_of_rows, entries_to_batch
from bayou.spark.executor import encode
from bayou.spark.kernels.transfer import write_records
from bayou.spark.sql.base import BaseView
from bayou.spark.sql.content import ContentSource, Grant, content_column, location_column

tree = Path(sys.argv[1])
(tree / "data").mkdir()
(tree / "data/raw").write_bytes(b"abc")
source = ContentSource(tree, BaseView(tree / "nodes"), Grant())
paths, none = array(["data/raw"], TEXT), array([False], pyarrow.bool_())
(located,) = location_column(source)(iter([(paths, none)]))
columns = (paths, array([3], INT), array([None], TEXT), none, none, located.field("entry"))
(content,) = content_column(source, tolerant=True)(iter([columns]))
assert content.to_pylist() == [{"content": b"abc", "error": None}]
found = entries_to_batch([Entry("a", None, 1, None, None, None, 2)])
write_records(tree / "records", found, [0])
list(batches_of_rows(pyarrow.schema({"number": INT}), [(1,)], 10))
encode(pyarrow.schema({"key": BYTES}), [("a",)])
sys.exit("pandas" in sys.modules)
"""


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_values_of_each_type_and_nulls_become_an_array_of_this_type(kind):
    found = array(KINDS[kind], kind)

    assert (found.type, found.to_pylist()) == (kind, KINDS[kind])


@given(st.lists(st.none() | st.binary(max_size=20)))
def test_large_values_become_the_array_that_pyarrow_would_make(values):
    found = binary_array(values)

    found.validate(full=True)
    assert found.equals(pyarrow.array(values, BYTES))


def test_what_kernels_make_imports_no_pandas(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KERNELS, str(tmp_path)], check=True)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_worker_of_spark_has_imported_no_pandas_after_a_task(spark: SparkSession) -> None:
    schema = pyarrow.schema({"pandas": INT})

    def read(_: int) -> Iterator[pyarrow.RecordBatch]:
        for _ in range(2):
            yield batch(schema, [["pandas" in sys.modules]])

    found = [row for part in batches(spark, read_parts(spark, schema, [0], read)) for row in part.to_pylist()]

    assert found == [{"pandas": 0}, {"pandas": 0}]
