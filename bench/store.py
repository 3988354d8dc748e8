"""Store layer against raw obstore, on the same SeaweedFS in the same run: small files, and one large one.

    ./dev bench store [--files 10000] [--size 5000] [--threads 64] [--large-mib 1024] [--rounds 3]

Prints times, ratios and peak memory. Exits 1 when a ratio is above 1.15 or the large file takes more than 300 MB.
Rounds alternate between the two, and the best of each counts: the machine is shared, and noise only ever adds.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
from obstore.store import S3Store

from bayou.core.ids import ulid
from bayou.objectstore import Store, keys, open_store
from bayou_testing.seaweed import SeaweedServer

LIMIT = 1.15
MEMORY_MB = 300


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def raw_client(bucket: str, endpoint: str) -> S3Store:
    return S3Store(bucket, endpoint=endpoint, client_options={"allow_http": True, "timeout": "120s"})


def small(
    store: Store, raw: S3Store, files: int, size: int, threads: int, rounds: int
) -> dict[str, tuple[float, float]]:
    content = os.urandom(size)
    digest = hashlib.sha256(content).digest()
    best: dict[str, list[float]] = {name: [9e9, 9e9] for name in ("put", "get")}
    for turn in range(rounds):
        names = [f"data/bench/{turn}/{number}/raw" for number in range(files)]
        push = ulid()
        ours = [keys.payload(name, push) for name in names]
        theirs = [f"raw-{turn}/{name}" for name in names]

        def put_raw() -> None:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda key: obstore.put(raw, key, content), theirs))

        def get_raw() -> None:
            def fetch(key: str) -> None:
                data = obstore.get(raw, key).bytes()
                if hashlib.sha256(data).digest() != digest:
                    raise AssertionError(key)

            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(fetch, theirs))

        def put_ours() -> None:
            for _ in store.map(lambda key: store.put(key, content), ours):
                pass

        def get_ours() -> None:
            def fetch(key: keys.Key) -> None:
                found = store.get(key)
                if found is None or hashlib.sha256(found.data).digest() != digest:
                    raise AssertionError(key)

            for _ in store.map(fetch, ours):
                pass

        for name, pair in (("put", (put_ours, put_raw)), ("get", (get_ours, get_raw))):
            order = (0, 1) if turn % 2 else (1, 0)
            for which in order:
                best[name][which] = min(best[name][which], timed(pair[which]))
    return {name: (pair[0], pair[1]) for name, pair in best.items()}


def in_child(work: Callable[..., None], *arguments: object) -> tuple[float, float]:
    """Run `work` in a process of its own; return seconds and its peak memory in MB."""
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[tuple[float, float]] = context.Queue()
    process = context.Process(target=_measured, args=(queue, work, *arguments))
    process.start()
    answer = queue.get()
    process.join()
    return answer


def _measured(queue: multiprocessing.Queue[tuple[float, float]], work: Callable[..., None], *arguments: object) -> None:
    seconds = timed(lambda: work(*arguments))
    queue.put((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000))


def up_ours(endpoint: str, path: str, digest: bytes) -> None:
    store = open_store("s3://bench/large", options={"endpoint": endpoint})
    with open(path, "rb") as file:
        store.upload(keys.payload("data/large/raw", "0" * 26), file, os.path.getsize(path), digest)


def down_ours(endpoint: str, path: str, digest: bytes) -> None:
    store = open_store("s3://bench/large", options={"endpoint": endpoint})
    with open(path + ".back", "wb") as file:
        came = store.download(keys.payload("data/large/raw", "0" * 26), file, os.path.getsize(path))
    if came.sha256 != digest:
        raise AssertionError("other bytes came back")


def up_raw(endpoint: str, path: str, digest: bytes) -> None:
    """Read and check the hash as we do, then let obstore upload the file by its own means."""
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").digest() != digest:
            raise AssertionError("other bytes")
    obstore.put(raw_client("bench", endpoint), "raw-large", Path(path), chunk_size=16 << 20, max_concurrency=4)


def down_raw(endpoint: str, path: str, digest: bytes) -> None:
    seen = hashlib.sha256()
    with open(path + ".back", "wb") as file:
        for chunk in obstore.get(raw_client("bench", endpoint), "raw-large").stream(8 << 20):
            seen.update(chunk)
            file.write(chunk)
    if seen.digest() != digest:
        raise AssertionError("other bytes came back")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=5_000)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--large-mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    failed = False
    with tempfile.TemporaryDirectory() as folder, SeaweedServer(Path(folder) / "seaweed") as server:
        os.environ.update(server.env())
        server.create_bucket("bench")
        store = open_store("s3://bench/small", options={"endpoint": server.url}, concurrency=options.threads)
        raw = raw_client("bench", server.url)
        obstore.put(raw, "warm", b"up")
        print(f"{'':24}{'bayou':>9}{'obstore':>9}{'ratio':>8}{'MB':>8}")
        for name, (ours, theirs) in small(
            store, raw, options.files, options.size, options.threads, options.rounds
        ).items():
            ratio = ours / theirs
            failed |= ratio > LIMIT
            print(f"{name} {options.files} x {options.size} B".ljust(24) + f"{ours:8.2f}s{theirs:8.2f}s{ratio:8.2f}")

        path = str(Path(folder) / "large")
        with open(path, "wb") as file:
            for _ in range(options.large_mib):
                file.write(os.urandom(1 << 20))
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        for name, ours_does, raw_does in (("up", up_ours, up_raw), ("down", down_ours, down_raw)):
            ours_best, raw_best, peak = 9e9, 9e9, 0.0
            for turn in range(options.rounds):
                for which in (0, 1) if turn % 2 else (1, 0):
                    seconds, memory = in_child((ours_does, raw_does)[which], server.url, path, digest)
                    if which == 0:
                        ours_best, peak = min(ours_best, seconds), max(peak, memory)
                    else:
                        raw_best = min(raw_best, seconds)
            ratio = ours_best / raw_best
            failed |= ratio > LIMIT or peak > MEMORY_MB
            title = f"{name} {options.large_mib} MiB".ljust(24)
            print(f"{title}{ours_best:8.2f}s{raw_best:8.2f}s{ratio:8.2f}{peak:8.0f}")
    print(f"limit: ratio {LIMIT}, memory {MEMORY_MB} MB: {'FAILED' if failed else 'ok'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
