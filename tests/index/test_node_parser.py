"""Issue 17, item 8: the process that parses nodes of a store may die of one, and nobody else does."""

from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bayou.core import limits
from bayou.core.errors import NodeDamaged, ParserFailed
from bayou.index import node_parser
from bayou.index.node import Child, Node, Pointer, child_of, leaf, name
from bayou.index.node_store import decode, encode
from tests.index.reference import some
from tests.index.resealed import resealed

NODE = leaf(some(50))
DATA = encode(NODE)


def ref(node: Node = NODE) -> Child:
    return child_of(node, name(node.digest, "c1"))


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """Give each test a child of its own, and find none when it ends."""
    node_parser._end_all()
    node_parser._state.child = None
    yield
    node_parser._end_all()
    node_parser._state.child = None
    assert children() == []


def children() -> list[int]:
    """Return the processes that this one has started and not waited for."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        direct = [int(pid) for pid in file.read().split()]
    return [pid for pid in direct if b"parser_child" in open(f"/proc/{pid}/cmdline", "rb").read()]


def child_pid() -> int:
    assert node_parser._state.child is not None
    return node_parser._state.child._process.pid


def run_in_child(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let the child do something else with each node."""
    main = node_parser._MAIN.replace("main()", f"import bayou.index.node_parser_child as c; {body}; main()")
    monkeypatch.setattr(node_parser, "_MAIN", main)


def test_17_8_one_child_parses_many_nodes_and_knows_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")

    decode(DATA, 0, ref())
    first = child_pid()
    decode(DATA, 0, ref())

    assert child_pid() == first
    with open(f"/proc/{first}/environ", "rb") as file:
        assert b"AWS" not in file.read()
    with open(f"/proc/{first}/limits", encoding="ascii") as file:
        rows = {line[:26].strip(): line[26:].split()[0] for line in file}
    assert rows["Max core file size"] == "0"
    assert int(rows["Max address space"]) < limits.NODE_MEMORY + (1 << 31)
    assert int(rows["Max cpu time"]) <= limits.NODE_CPU_S + 5


def test_17_8_nodes_of_this_machine_need_no_child() -> None:
    assert decode(DATA, 0, ref(), ours=True) == NODE
    assert children() == []


def test_17_8_a_file_of_this_machine_without_a_seal_is_parsed_apart() -> None:
    """Only a seal shows that a disk has not changed it since it was proved."""
    table = pq.read_table(io.BytesIO(DATA)).replace_schema_metadata(None)
    out = io.BytesIO()
    pq.write_table(table, out)

    assert decode(out.getvalue(), 0, ref(), ours=True) == NODE
    assert len(children()) == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("import os; c._answer = lambda d, n: os.abort()", "signal 6"),
        ("import os; c._answer = lambda d, n: os._exit(3)", "exit code 3"),
        ("c._answer = lambda d, n: (0, b'no JSON')", "no JSON"),
        ("c._answer = lambda d, n: (0, b'{}')", "no columns"),
        ("c._answer = lambda d, n: (0, b'[]')", "columns"),
        ("c._answer = lambda d, n: (0, b'[[1],[2],[3],[4],[5],[6],[7]]')", "damaged"),
        ('c._answer = lambda d, n: (0, b\'[[1],["2"],[3],["zz"],["5"],["6"],[7]]\')', "damaged"),
        ("c._answer = lambda d, n: (9, b'\\xff')", "damaged"),
        ("import os; c._write = lambda d, w=c._write: w(d[:3]) or os._exit(0) if len(d) > 5 else w(d)", "exit code 0"),
        ("c._write = lambda d, w=c._write: w(b'\\xff' * 4 + b'\\0' if len(d) > 5 else d)", "too long"),
    ],
)  # fmt: skip
def test_17_8_a_child_that_dies_or_answers_nonsense_is_a_damaged_node(
    monkeypatch: pytest.MonkeyPatch, body: str, why: str
) -> None:
    with monkeypatch.context() as patch:
        run_in_child(patch, body)
        with pytest.raises(NodeDamaged, match=ref().node) as caught:
            decode(DATA, 0, ref())
        assert why in caught.value.message
        node_parser._end_all()
        node_parser._state.child = None

    assert decode(DATA, 0, ref()) == NODE, "the next node gets a new child"


def test_17_8_a_child_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NODE_SECONDS", 2.0)
    with monkeypatch.context() as patch:
        run_in_child(patch, "import time; c._answer = lambda d, n: time.sleep(1000)")
        with pytest.raises(NodeDamaged, match="longer than 2 s"):
            decode(DATA, 0, ref())

    assert children() == []


def test_17_8_a_child_that_computes_for_ever_is_ended_by_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_child(monkeypatch, "c.limits.NODE_CPU_S = 0; c.read_columns = lambda d, n: [0 for _ in iter(int, 1)]")

    with pytest.raises(NodeDamaged, match=f"signal {signal.SIGXCPU.value}"):
        decode(DATA, 0, ref())


def test_17_8_a_child_that_was_killed_since_is_replaced() -> None:
    decode(DATA, 0, ref())
    os.kill(child_pid(), signal.SIGKILL)

    assert decode(DATA, 0, ref()) == NODE


def test_17_8_a_child_that_ended_for_want_of_work_says_nothing_about_the_next_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """V4: a request to a slow store takes longer than a child waits."""
    run_in_child(monkeypatch, "c._IDLE_S = 0.3")
    node_parser.prepare()
    pid = child_pid()
    while node_parser._state.child is not None and node_parser._state.child._process.poll() is None:
        time.sleep(0.01)

    assert decode(DATA, 0, ref()) == NODE
    assert child_pid() != pid


def test_17_8_a_node_of_which_every_new_child_is_killed_is_damaged_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a container has less memory than a node may take."""
    started = []
    run_in_child(monkeypatch, "import os; c._answer = lambda d, n: os.kill(os.getpid(), 9)")
    start = node_parser._Child.__init__
    monkeypatch.setattr(node_parser._Child, "__init__", lambda self: (started.append(1), start(self))[1])

    with pytest.raises(NodeDamaged, match="signal 9"):
        decode(DATA, 0, ref())

    assert len(started) == 2


def test_17_8_a_child_that_does_not_start_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """V4: else a machine without memory would say that the index is damaged, and somebody would rebuild it."""
    monkeypatch.setattr(node_parser, "_MAIN", "import nothing_of_that_name")
    with pytest.raises(ParserFailed, match="exit code 1"):
        decode(DATA, 0, ref())
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ParserFailed, match="/nowhere/python"):
        decode(DATA, 0, ref())


def test_17_8_many_threads_share_the_child_and_each_gets_its_own_answer() -> None:
    nodes = [leaf(some(count)) for count in range(1, 60)]
    files = [encode(node) for node in nodes]
    wrong: list[object] = []

    def read(at: int) -> None:
        for turn in range(5):
            one = (at + turn) % len(nodes)
            if decode(files[one], 0, ref(nodes[one])) != nodes[one]:
                wrong.append(one)

    threads = [threading.Thread(target=read, args=(at,)) for at in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(children()) == 1


def test_17_8_a_fork_has_a_child_of_its_own() -> None:
    """Spark's workers are forks of one another."""
    decode(DATA, 0, ref())
    mine = child_pid()
    forked = os.fork()
    if not forked:
        code = 1
        try:
            decode(DATA, 0, ref())
            code = 0 if child_pid() != mine else 2
        finally:
            node_parser._end_all()
            os._exit(code)
    assert os.waitpid(forked, 0)[1] == 0
    decode(DATA, 0, ref())
    assert child_pid() == mine


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_17_8_no_child_outlives_its_process(end: str) -> None:
    """V14, however it ends."""
    script = (
        "import os\nfrom tests.index.test_node_parser import DATA, child_pid, decode, ref\n"
        f"decode(DATA, 0, ref()); print(child_pid(), flush=True)\n{end}"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    pid = int(ran.stdout)

    until = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")


BOMBS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rows": ({"size": pa.repeat(0, 1_000_000)}, {}),
    "one text in a dictionary": (
        {"path": pa.DictionaryArray.from_arrays(pa.array([0] * 4000, pa.int32()), pa.array(["x" * 1_000_000]))},
        {},
    ),
}


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize("bomb", BOMBS)
def test_17_9_a_few_kilobytes_that_unpack_to_gigabytes_are_refused_in_bounded_memory(bomb: str, seal: bool) -> None:
    columns, options = BOMBS[bomb]
    count = len(next(iter(columns.values())))
    plain = {
        "path": pa.repeat("data/a", count),
        "push": pa.nulls(count, pa.string()),
        "size": pa.repeat(0, count),
        "sha256": pa.nulls(count, pa.binary(32)),
        "etag": pa.nulls(count, pa.string()),
        "version": pa.nulls(count, pa.string()),
        "modified": pa.repeat(0, count).cast(pa.timestamp("ms", "UTC")),
    }
    out = io.BytesIO()
    table = pa.table({**plain, **columns})
    if seal:
        table = table.replace_schema_metadata({"bayou.sha256": "0" * 64})
    pq.write_table(table, out, compression="zstd", use_dictionary=True, row_group_size=count, **options)
    data = resealed(out.getvalue()) if seal else out.getvalue()
    assert len(data) < 200_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(NodeDamaged):
        decode(data, 0, Pointer(0, name(bytes(32), "c1")))

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "this process"
    decode(DATA, 0, ref())
