"""Workers prove that they see a directory; whoever answers nothing, or makes answers up, has proved nothing (17.1)."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest

from bayou.config import SparkConfig
from bayou.core.errors import SparkNotShared
from bayou.spark import shared_fs
from bayou.spark.arrow import batch
from bayou.spark.server.control import SparkServer
from bayou.spark.session import spark_session
from bayou.spark.shared_fs import (
    ANSWERS,
    QUESTIONS,
    ReadMarker,
    ReadNumbers,
    proof,
    require_shared,
    require_store,
    unproved,
)

WORD, NONCE = b"a random word", "nonce"


def numbers(first: int, last: int) -> Iterable[pyarrow.RecordBatch]:
    """What a task gets: its numbers, in batches."""
    middle = (first + last) // 2
    return [
        pyarrow.RecordBatch.from_pydict({"id": list(range(*span))}) for span in ((first, middle), (middle, last + 1))
    ]


def ask(kernel: ReadMarker | ReadNumbers, tasks: int = 3) -> list[pyarrow.RecordBatch]:
    """Let a kernel answer in several tasks, as it is shipped to them."""
    kernel, size = pickle.loads(pickle.dumps(kernel)), QUESTIONS // tasks
    ends = [size * task for task in range(tasks)] + [QUESTIONS]
    return [one for first, end in pairwise(ends) for one in kernel(iter(numbers(first, end - 1)))]


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    (tmp_path / "marker").write_bytes(WORD)
    return tmp_path / "marker"


# ---- what an answer is worth ----


@pytest.mark.parametrize("tasks", [1, 2, 3, 64])
def test_who_reads_the_marker_proves_it(marker: Path, tasks: int) -> None:
    answers = ask(ReadMarker(str(marker), NONCE), tasks)

    assert len(answers) == tasks, "one answer of one row for each task"
    assert unproved(answers, WORD, NONCE) is None


def test_17_1_the_kernel_does_not_know_the_word(marker: Path, tmp_path: Path) -> None:
    """So a server cannot answer from what it was sent."""
    (tmp_path / "inside").mkdir()
    assert WORD not in pickle.dumps(ReadMarker(str(marker), NONCE))
    kernel = ReadNumbers(str(tmp_path), ("inside",), NONCE)
    assert str((tmp_path / "inside").stat().st_ino).encode() not in pickle.dumps(kernel)


def test_who_has_another_file_or_none_is_blind(marker: Path, tmp_path: Path) -> None:
    assert unproved(ask(ReadMarker(str(tmp_path / "elsewhere"), NONCE)), WORD, NONCE)
    marker.write_bytes(b"another word")
    assert unproved(ask(ReadMarker(str(marker), NONCE)), WORD, NONCE)


def answer(
    first: Any, last: Any, told: str | None = None, nonce: str = NONCE, word: bytes = WORD
) -> pyarrow.RecordBatch:
    values = (first, last, "host", proof(word, nonce, first, last) if told is None else told)
    return batch(ANSWERS, [[value] for value in values])


END = QUESTIONS - 1
FAKES = {
    "nothing": [],
    "no rows": [batch(ANSWERS, [[], [], [], []])],
    "a row made up": [answer(0, END, "yes")],
    "an empty proof": [answer(0, END, "")],
    "the proof of another look": [answer(0, END, nonce="another")],
    "the proof of somebody who read nothing": [answer(0, END, word=b"")],
    "some tasks are missing at the end": [answer(0, 10)],
    "some tasks are missing in the middle": [answer(0, 10), answer(12, END)],
    "some tasks are missing at the beginning": [answer(1, END)],
    "one task answers twice": [answer(0, END), answer(0, END)],
    "answers overlap": [answer(0, 20), answer(10, END)],
    "more is answered than was asked": [answer(0, END), answer(END + 1, END + 1)],
    "backwards": [answer(0, -1), answer(0, END)],
    "one of them is blind": [answer(0, 10), answer(11, END, "no")],
    "no numbers": [answer(None, None)],
    "another form": [pyarrow.RecordBatch.from_pydict({"host": ["host"]})],
    "the names of columns only": [pyarrow.RecordBatch.from_pydict({name: ["x"] for name in ANSWERS.names})],
    "a flood": [batch(ANSWERS, [[0] * 40_000, [0] * 40_000, ["h"] * 40_000, [proof(WORD, NONCE, 0, 0)] * 40_000])] * 3,
}


@pytest.mark.parametrize("answers", FAKES.values(), ids=FAKES)
def test_17_1_whatever_is_not_a_proof_of_every_task_proves_nothing(answers: list[pyarrow.RecordBatch]) -> None:
    assert unproved(answers, WORD, NONCE) is not None


# ---- a store that is not written to ----


def test_a_store_is_known_by_its_numbers(tmp_path: Path) -> None:
    for name in ("files", "more"):
        (tmp_path / name).mkdir()
    names = shared_fs._directories(tmp_path)
    mine = shared_fs._numbers(tmp_path, names)
    assert names == ("files", "more")

    assert unproved(ask(ReadNumbers(str(tmp_path), names, NONCE)), mine, NONCE) is None
    assert unproved(ask(ReadNumbers(str(tmp_path / "files"), names, NONCE)), mine, NONCE)
    assert unproved(ask(ReadNumbers(str(tmp_path / "nowhere"), names, NONCE)), mine, NONCE)
    (tmp_path / "new").mkdir()  # what came meanwhile is no reason to doubt
    assert unproved(ask(ReadNumbers(str(tmp_path), names, NONCE)), mine, NONCE) is None


def test_an_empty_store_is_not_taken_for_any_other_empty_directory(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
    mine = shared_fs._numbers(tmp_path / "mine", ())

    assert unproved(ask(ReadNumbers(str(tmp_path / "mine"), (), NONCE)), mine, NONCE) is None
    assert unproved(ask(ReadNumbers(str(tmp_path / "other"), (), NONCE)), mine, NONCE)
    assert unproved(ask(ReadNumbers(str(tmp_path / "none"), (), NONCE)), mine, NONCE)


# ---- the question as a whole, put to a server that somebody else wrote ----


class Server:
    """A session of a server that answers what it likes, whatever it is asked."""

    def __init__(self, answers: list[pyarrow.RecordBatch], **settings: str) -> None:
        self.answers, self.settings, self.tasks = answers, settings, -1
        self.conf = SimpleNamespace(get=lambda name, default=None: self.settings.get(name, default))

    def range(self, first: int, last: int, step: int, tasks: int | None) -> Server:
        assert (first, last, step) == (0, QUESTIONS, 1)
        self.tasks = tasks
        return self

    def mapInArrow(self, kernel: ReadMarker | ReadNumbers, schema: str) -> Server:  # noqa: N802
        self.kernel = kernel
        return self


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_fs, "batches", lambda spark, _: iter(spark.answers))
    monkeypatch.setattr(shared_fs, "log_of", lambda _: None)


@pytest.mark.parametrize("answers", FAKES.values(), ids=FAKES)
def test_17_1_a_server_that_answers_nothing_or_makes_it_up_is_refused(
    asked: None, tmp_path: Path, answers: list[pyarrow.RecordBatch]
) -> None:
    server: Any = Server(answers)
    for look in (
        lambda: require_shared(server, tmp_path, "the tree"),
        lambda: require_store(server, tmp_path.as_uri()),
        lambda: require_store(server, tmp_path.as_uri(), writes=True),
    ):
        with pytest.raises(SparkNotShared, match=r"see the (tree|store) .*under the same path"):
            look()
    assert list(tmp_path.iterdir()) == [], "the marker is gone"


def test_a_server_s_words_are_not_repeated_unless_they_are_the_name_of_a_host(asked: None, tmp_path: Path) -> None:
    said = batch(ANSWERS, [[0, 1], [0, 1], ["evil\n\x1b[2Jerror: pay", "worker-7.local"], ["", ""]])
    server: Any = Server([said])

    with pytest.raises(SparkNotShared) as refused:
        require_shared(server, tmp_path, "the tree")

    assert "on worker-7.local do not see the tree" in refused.value.message
    assert "pay" not in refused.value.message


@pytest.mark.parametrize(
    ("settings", "tasks"),
    [
        ({}, None),
        ({"spark.dynamicAllocation.enabled": "true"}, 64),
        ({"spark.default.parallelism": "4"}, 64),
        ({"spark.sql.leafNodeDefaultParallelism": "400"}, 400),
    ],
)
def test_every_executor_has_a_task(asked: None, tmp_path: Path, settings: dict[str, str], tasks: int | None) -> None:
    server: Any = Server([], **settings)

    with pytest.raises(SparkNotShared):
        require_shared(server, tmp_path, "the tree")

    assert server.tasks == tasks


@pytest.mark.spark
def test_the_workers_of_a_real_server_prove_what_they_see(
    warm: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As somebody else's server: of our own it is known."""
    (tmp_path / "store" / "files").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    with spark_session(SparkConfig()):  # it runs for as long as it is used
        server = warm.running()
        assert server is not None
        monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", server.token)
        with spark_session(SparkConfig(remote=server.url)) as spark:
            assert not shared_fs.on_this_machine(spark)

            require_shared(spark, tmp_path, "the tree")
            for name in ("store", "empty", "missing"):
                require_store(spark, (tmp_path / name).as_uri())
            require_store(spark, (tmp_path / "store").as_uri(), writes=True)

            monkeypatch.setattr(shared_fs, "_numbers", lambda *_: b"of another directory")
            with pytest.raises(SparkNotShared, match=r"on \S+ do not see the store"):
                require_store(spark, (tmp_path / "store").as_uri())
            with pytest.raises(SparkNotShared, match=r"on \S+ do not see the tree"):
                shared_fs._require(spark, ReadMarker(str(tmp_path / "marker"), NONCE), WORD, tmp_path, "the tree")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty", "store"]
