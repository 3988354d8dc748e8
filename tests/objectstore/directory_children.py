"""Processes that work on a directory store at the same time, or die in it. Run as a program; prints JSON."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bayou.core.errors import AlreadyExists, PreconditionFailed
from bayou.objectstore.backends.directory import LocalTransport
from bayou.objectstore.transport import Create, Match

PATIENCE = 60.0
BLOCK = 64 * 1024


def contend(root: str, name: str, increments: str, creations: str) -> None:
    """Wait for the starting shot; count up together with the others, then create what they create."""
    store = LocalTransport(Path(root))
    while not os.path.exists(f"{root}/start"):
        time.sleep(0.001)
    lost = 0
    for _ in range(int(increments)):
        while True:
            found = store.get("counter", timeout=PATIENCE)
            assert found is not None
            following = str(int(bytes(found.data)) + 1).encode()
            try:
                store.put("counter", following, condition=Match(found.meta.etag), timeout=PATIENCE)
                break
            except PreconditionFailed:
                lost += 1
    won = []
    for number in range(int(creations)):
        try:
            store.put(f"created/{number}", name.encode(), condition=Create(), timeout=PATIENCE)
            won.append(number)
        except AlreadyExists:
            pass
    print(json.dumps({"name": name, "lost": lost, "won": won}))


def swap(root: str, outside: str, *only: str) -> None:
    """Put links to `outside` in the place of one directory of the store after the other, and the directory back."""
    print("swapping", flush=True)
    while True:
        for name in only:
            time.sleep(random.uniform(0, 0.01))
            _swap(f"{root}/{name}", f"{root}/{name}.away", outside, 0.003)
        if only:
            continue
        for directory, below, _ in os.walk(root, topdown=False):
            for name in below:
                path = os.path.join(directory, name)
                if not os.path.islink(path):
                    _swap(path, f"{path}.away", outside, 0.0001)


def _swap(path: str, away: str, outside: str, seconds: float) -> None:
    try:
        os.rename(path, away)
        os.symlink(outside, path)
        time.sleep(seconds)
        os.unlink(path)
        os.rename(away, path)
    except OSError:
        pass  # the store was faster, and has made the directory again


def die(root: str, seed: str) -> None:
    """Kill a writer at every step of every kind of write, and many times at any moment; look each time what is left."""
    store = LocalTransport(Path(root))
    store.put("head", b"old" * 1000, condition=Create(), timeout=PATIENCE)
    steps = {
        "plain": _at_every_step(store, lambda: store.put("data/plain/raw", _block(b"p"), timeout=PATIENCE)),
        "parts": _at_every_step(
            store,
            lambda: store.put_chunks(
                "data/parts/raw", iter([_block(b"q")] * 3), part_size=BLOCK, parallel=1, timeout=PATIENCE
            ),
        ),
        "create": _at_every_step(store, lambda: _created(store)),
        "swap": _at_every_step(store, lambda: _swapped(store, b"new")),
    }
    rng = random.Random(seed)
    rounds = 40
    for _ in range(rounds):
        _dies(lambda: _write_for_ever(store), after=rng.uniform(0, 0.015))
        _check(store)
    print(json.dumps({"steps": steps, "rounds": rounds}))


def _at_every_step(store: LocalTransport, write: Callable[[], object]) -> int:
    """Let a process die before its first, second, … call into the system, until one lives through all of it."""
    step = 0
    while True:
        step += 1
        died = _dies(partial(_dying_at, step, write))
        _check(store)
        if not died:
            return step


def _dying_at(limit: int, write: Callable[[], object]) -> None:
    calls = 0

    def count(event: str, _: object) -> None:
        nonlocal calls
        if event.startswith(("os.", "open", "fcntl.")):
            calls += 1
            if calls == limit:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    write()


def _dies(work: Callable[[], object], after: float | None = None) -> bool:
    """Run `work` in a process of its own, and kill that after so many seconds; return whether it died of a kill."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the writer failed instead of dying"
    return os.WIFSIGNALED(status)


def _block(byte: bytes) -> bytes:
    return byte * BLOCK


def _created(store: LocalTransport) -> None:
    try:
        store.put("data/created", _block(b"c"), condition=Create(), timeout=PATIENCE)
    except AlreadyExists:
        pass


def _swapped(store: LocalTransport, text: bytes) -> None:
    found = store.get("head", timeout=PATIENCE)
    assert found is not None
    store.put("head", text * 1000, condition=Match(found.meta.etag), timeout=PATIENCE)


def _write_for_ever(store: LocalTransport) -> None:
    number = 0
    while True:
        number += 1
        store.put(f"data/many/{os.getpid()}-{number}/raw", _block(b"m"), timeout=PATIENCE)
        _swapped(store, b"n%02d" % (number % 100))


def _check(store: LocalTransport) -> None:
    """What everybody else finds after a death: whole objects, nothing else, and no lock that is still held."""
    metas = [meta for page in store.list("", timeout=PATIENCE) for meta in page]
    for meta in metas:
        assert ".bayou-" not in meta.key, meta
        found = store.get(meta.key, timeout=PATIENCE)
        assert found is not None
        data = bytes(found.data)
        if meta.key == "head":
            assert data == data[:3] * 1000, meta
        else:
            assert data == data[:1] * (3 * BLOCK if "parts" in meta.key else BLOCK), meta
    store.delete([meta.key for meta in metas if meta.key != "head"], timeout=PATIENCE)
    _swapped(store, b"old")


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {"contend": contend, "die": die, "swap": swap}
    roles[sys.argv[1]](*sys.argv[2:])
