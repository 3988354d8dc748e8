"""Uploading packs: few at a time, each under a name of its own, and a failure is of one pack."""

from __future__ import annotations

import hashlib
import io
import random
import threading
import tracemalloc
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bayou.core.deadline import Deadline
from bayou.core.errors import AccessDenied, DeadlinePassed, Unavailable
from bayou.objectstore import Store, keys
from bayou.objectstore.backends.directory import LocalTransport
from bayou.objectstore.keys import KeyScope
from bayou.objectstore.retry import RetryPolicy
from bayou.packs import write
from bayou.packs.archive import LIST_NAME, MOST_MEMBERS
from bayou.packs.usage import is_small
from bayou.packs.write import IN_FLIGHT, PACK_BYTES, PackWriter, SealedPack, SentPack
from bayou_testing.faulty import Fault, FaultyTransport, lost_answer

PUSH = "01J8XG4Q6V5T3N2M1K0H9G8F7E"
PATIENCE_S = 30
SIZE = 10_000
"""Bytes of a file that fills a pack by itself."""


class Slow(FaultyTransport):
    """A store that takes writes only when it is told to."""

    gate: threading.Semaphore
    arrived: threading.Semaphore

    def put(self, key: str, data: Any, **more: Any) -> Any:
        self.arrived.release()
        assert self.gate.acquire(timeout=PATIENCE_S)
        return super().put(key, data, **more)


@pytest.fixture
def transport(tmp_path: Path) -> FaultyTransport:
    (tmp_path / "store").mkdir()
    return FaultyTransport(LocalTransport(tmp_path / "store"))


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    (tmp_path / "store").mkdir()
    transport = Slow(LocalTransport(tmp_path / "store"))
    transport.gate, transport.arrived = threading.Semaphore(0), threading.Semaphore(0)
    return transport


def opened(transport: FaultyTransport, deadline: Deadline | None = None) -> Store:
    store = Store(transport, KeyScope.of("", None), policy=RetryPolicy(attempts=3, base_s=0.001))
    return store if deadline is None else store.within(deadline)


def add(writer: PackWriter, number: int, size: int = SIZE) -> SealedPack | None:
    data = random.Random(number).randbytes(size)
    return writer.add(f"files/{number:05}", PUSH, data, hashlib.sha256(data).digest(), 0)


def fill(writer: PackWriter, count: int) -> list[SealedPack]:
    """Make so many packs, of a file each."""
    made = [add(writer, number) for number in range(count)]
    assert None not in made
    return [pack for pack in made if pack is not None]


def in_store(store: Store) -> dict[str, list[str]]:
    """Return the files of each pack, read with a plain ZIP tool."""
    found: dict[str, list[str]] = {}
    for page in store.list():
        for meta in page:
            name = keys.parse_pack(meta.key)
            assert name is not None, meta
            fetched = store.get(keys.as_listed(meta.key))
            assert fetched is not None
            with zipfile.ZipFile(io.BytesIO(bytes(fetched.data))) as archive:
                found[name] = [member for member in archive.namelist() if member != LIST_NAME]
    return found


def in_thread(work: Any) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results


def test_files_are_packed_until_a_pack_is_large_enough(transport: FaultyTransport) -> None:
    store = opened(transport)
    with closing(PackWriter(store, 5000)) as writer:
        sealed = [pack for number in range(22) if (pack := add(writer, number, 1000)) is not None]
        last = writer.seal()
        assert last is not None
        sent = list(writer.drain())

    assert [one.error for one in sent] == [None] * len(sent)
    assert [one.pack.name for one in sent] == [pack.name for pack in (*sealed, last)]
    assert in_store(store) == {pack.name: [member.path for member in pack.members] for pack in (*sealed, last)}
    assert {len(pack.members) for pack in sealed} == {5}
    assert sum(len(pack.members) for pack in (*sealed, last)) == 22
    assert store.requests.put == len(sealed) + 1


def test_a_pack_without_files_is_none(transport: FaultyTransport) -> None:
    store = opened(transport)
    with closing(PackWriter(store)) as writer:
        assert writer.seal() is None
        assert list(writer.drain()) == []
    assert store.requests.put == 0


def test_a_pack_has_no_more_files_than_zip_can_count(
    transport: FaultyTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "MOST_MEMBERS", 7)
    assert MOST_MEMBERS < 1 << 16
    with closing(PackWriter(opened(transport))) as writer:
        sealed = [add(writer, number, 1) for number in range(14)]
        list(writer.drain())

    assert [number for number, pack in enumerate(sealed) if pack is not None] == [6, 13]


def test_a_file_has_its_place_before_its_pack_has_arrived(slow: Slow) -> None:
    with closing(PackWriter(opened(slow), SIZE)) as writer:
        (sealed,) = fill(writer, 1)

        assert list(writer.sent()) == []
        assert list(writer.arrived()) == []
        (member,) = sealed.members
        assert (member.path, member.size) == ("files/00000", SIZE)

        slow.gate.release()
        (sent,) = writer.drain()
    assert (sent.pack, sent.error) == (sealed, None)


def test_no_more_packs_are_under_way_than_may_be(slow: Slow) -> None:
    """The next pack waits, and with it whoever reads the files: memory does not grow."""
    with closing(PackWriter(opened(slow), SIZE)) as writer:
        fill(writer, IN_FLIGHT)
        for _ in range(IN_FLIGHT):
            assert slow.arrived.acquire(timeout=PATIENCE_S)
        thread, made = in_thread(lambda: add(writer, IN_FLIGHT))
        assert not slow.arrived.acquire(timeout=0.3)
        assert not made

        slow.gate.release()
        assert slow.arrived.acquire(timeout=PATIENCE_S)
        thread.join(PATIENCE_S)
        assert made[0] is not None
        for _ in range(IN_FLIGHT):
            slow.gate.release()
        assert len(list(writer.drain())) == IN_FLIGHT + 1


def test_memory_is_that_of_a_few_packs_however_many_files_there_are(transport: FaultyTransport) -> None:
    pack_size, file = 1 << 20, 100_000
    random.Random(0).randbytes(file)
    tracemalloc.start()
    try:
        with closing(PackWriter(opened(transport), pack_size)) as writer:
            for number in range(600):
                add(writer, number, file)
                list(writer.sent())
            writer.seal()
            list(writer.drain())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 600 * file > 50 * pack_size
    # In flight, being filled, and the one that is just put together, twice.
    assert peak < (IN_FLIGHT + 3) * (pack_size + file) + (2 << 20)


def test_every_attempt_at_the_same_files_has_a_key_of_its_own(transport: FaultyTransport) -> None:
    """P1, K1: a late PUT of an earlier attempt hits nothing."""
    names = set()
    for _ in range(3):
        with closing(PackWriter(opened(transport), SIZE)) as writer:
            names |= {pack.name for pack in fill(writer, 2)}
            list(writer.drain())

    assert len(names) == 6
    assert len(in_store(opened(transport))) == 6


def test_a_lost_answer_is_asked_for_again_with_the_same_bytes_and_the_pack_is_known_to_be_repeated(
    transport: FaultyTransport,
) -> None:
    """P1, K13."""
    transport.faults.append(Fault("put", nth=2, when="after", error=lost_answer))
    store = opened(transport)
    with closing(PackWriter(store, SIZE)) as writer:
        fill(writer, 1)
        (first,) = writer.drain()
        fill(writer, 1)
        (second,) = writer.drain()

    assert first.stored is not None
    assert second.stored is not None
    assert (first.stored.repeated, second.stored.repeated) == (False, True)
    puts = [one.key for one in transport.seen if one.verb == "put"]
    assert puts == [keys.pack(name) for name in (first.pack.name, second.pack.name, second.pack.name)]
    assert len(in_store(store)) == 2


def test_a_pack_that_is_refused_is_one_result_and_the_others_arrive(transport: FaultyTransport) -> None:
    refused = threading.Event()

    def refuse() -> BaseException:
        refused.set()
        return AccessDenied("403")

    transport.faults.append(Fault("put", nth=1, error=refuse))
    store = opened(transport)
    with closing(PackWriter(store, SIZE)) as writer:
        (first,) = fill(writer, 1)
        assert refused.wait(PATIENCE_S)
        others = [add(writer, number) for number in (1, 2)]
        sent = {one.pack.name: one for one in writer.drain()}

    assert isinstance(sent[first.name].error, AccessDenied)
    assert sent[first.name].stored is None
    assert all(sent[pack.name].stored is not None for pack in others if pack is not None)
    assert in_store(store).keys() == {pack.name for pack in others if pack is not None}


def test_a_store_that_is_down_fails_each_pack_after_its_attempts(transport: FaultyTransport) -> None:
    transport.faults.append(Fault("put", error=lost_answer))
    store = opened(transport)
    with closing(PackWriter(store, SIZE)) as writer:
        fill(writer, 2)
        sent = list(writer.drain())

    assert [type(one.error) for one in sent] == [Unavailable, Unavailable]
    assert store.requests.put == 2 * 3


def test_a_deadline_ends_the_wait(slow: Slow) -> None:
    store = opened(slow, Deadline.after(0.2))
    slow.faults.append(Fault("put", error=lambda: DeadlinePassed("not finished")))
    with closing(PackWriter(store, SIZE)) as writer:
        fill(writer, 1)
        slow.gate.release()
        with pytest.raises(DeadlinePassed):
            list(writer.drain())


def test_who_stops_early_learns_which_packs_have_arrived(slow: Slow) -> None:
    """So that the next push does not send them again."""
    writer = PackWriter(opened(slow), SIZE)
    sealed = fill(writer, 3)
    slow.gate.release()
    arrived: list[SentPack] = []
    for _ in range(PATIENCE_S * 100):
        arrived += writer.arrived()
        if arrived:
            break
        threading.Event().wait(0.01)

    (one,) = arrived
    assert one.pack in sealed
    assert one.stored is not None
    for _ in range(2):
        slow.gate.release()
    writer.close()


def test_what_was_not_sent_when_a_writer_is_closed_never_is(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: it is abandoned; its files go into another pack."""
    monkeypatch.setattr(write, "IN_FLIGHT", 2)
    writer = PackWriter(opened(slow), SIZE)
    fill(writer, 2)
    for _ in range(2):
        assert slow.arrived.acquire(timeout=PATIENCE_S)
    thread, _ = in_thread(writer.close)
    slow.gate.release(2)
    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    assert not slow.arrived.acquire(timeout=0.1)


def sizes_of_packs(writer: PackWriter, bytes_to_send: int) -> list[int]:
    """Send so many bytes in files of 64 KiB, one pack after the other; return how many files each pack got."""
    counts: list[int] = []
    for number in range(bytes_to_send >> 16):
        sealed = add(writer, number, 1 << 16)
        if sealed is not None:
            counts.append(len(sealed.members))
            list(writer.drain())
    return counts


def on_a_link(store: Store, rate: float) -> Store:
    """Return a store whose link has shown this rate, in bytes a second, and shows it again and again."""
    store.link.up._rate = rate
    store.link.up._measure = lambda size, seconds: None  # type: ignore[method-assign]
    return store


def test_on_a_slow_link_packs_become_smaller_down_to_a_limit(transport: FaultyTransport) -> None:
    for rate, files in ((400_000, 31), (1_000, 16)):
        with closing(PackWriter(on_a_link(opened(transport), rate), 4 << 20)) as writer:
            assert set(sizes_of_packs(writer, 6 << 20)) == {files}, "what the link moves in 5 s, and 1 MiB at least"


def test_a_full_pack_of_a_slow_link_is_not_small_so_that_a_compaction_leaves_it(transport: FaultyTransport) -> None:
    with closing(PackWriter(on_a_link(opened(transport), 1_000))) as writer:
        sealed = [pack for number in range(96) if (pack := add(writer, number, 1 << 16)) is not None]
        list(writer.drain())
    assert len(sealed) == 3
    assert not any(is_small(keys.pack_bytes(pack.name) or 0, PACK_BYTES) for pack in sealed)


def test_the_first_pack_shows_how_slow_the_link_is(transport: FaultyTransport) -> None:
    store = opened(transport)
    store.link.up._measure = lambda size, seconds: setattr(store.link.up, "_rate", 1_000.0)  # type: ignore[method-assign]
    with closing(PackWriter(store, 4 << 20)) as writer:
        assert sizes_of_packs(writer, 7 << 20) == [64, 16, 16, 16]


def test_on_a_fast_link_packs_keep_their_size(transport: FaultyTransport) -> None:
    with closing(PackWriter(on_a_link(opened(transport), 1e9), 1 << 20)) as writer:
        assert sizes_of_packs(writer, 4 << 20) == [16] * 4


def test_packs_that_are_configured_small_do_not_grow_on_a_slow_link(transport: FaultyTransport) -> None:
    with closing(PackWriter(on_a_link(opened(transport), 1_000), 256 << 10)) as writer:
        assert sizes_of_packs(writer, 1 << 20) == [4] * 4
