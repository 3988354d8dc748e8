"""The spool (V22): an input is durable, belongs to one living process, and is used once, whenever one is killed."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import pytest

import bayou
from bayou.core.atomic_file import write_file
from bayou.core.errors import StateError, TreeError
from bayou.data import manifest, spool
from bayou.data.items import Item
from bayou.data.manifest import receive_directory
from bayou.data.metadata import Options
from bayou.data.records import Records
from bayou.data.spool import SpooledInput, abandoned_inputs, create_part, receive
from bayou.models import create_model
from bayou.repo import Repo, init_repo, open_repo
from bayou.session.inputs import empty_spool
from bayou.state.connection import Connection
from bayou.state.freshness import pending_inputs, spool_directory
from bayou.sync.plan.policy import ModelRef
from bayou.sync.report import SyncReport

ONE = ModelRef("@org/shell", "11111111-1111-4111-8111-111111111111", "one")

DYING = """
import os, signal, sys
from pathlib import Path
from bayou.data.manifest import receive_directory
from bayou.data.metadata import Options
from bayou.data.spool import receive
from bayou.repo import open_repo
from bayou.session import write_session
from bayou.sync.plan.policy import ModelRef
from bayou.sync.report import SyncReport

one = ModelRef(*sys.argv[2].split(","))
command, repos = sys.argv[1], sys.argv[3:]
NAMES = ("fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir", "ftruncate")
real = {name: getattr(os, name) for name in NAMES}

def dying(at):
    left = [at]
    def count(function):
        def called(*args, **kwargs):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)
        return called
    for name in NAMES:
        setattr(os, name, count(real[name]))

for at, root in enumerate(repos, 1):
    child = os.fork()
    if not child:
        repo = open_repo(root)
        dying(at)
        if command == "directory":
            received = receive_directory(repo, one, "log", Path(os.environ["SOURCE"]), Options(), always=True)
        else:
            received = receive(repo, command, one, "log", b"input", Options())
        with received as spooled:
            with write_session(repo, models=[one], alone=True) as session:
                session.records.data.use_input(spooled)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("died" if os.WIFSIGNALED(status) else status, flush=True)
"""


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return init_repo(tmp_path / "repo")


def made(repo: Repo, name: str = "log") -> list[bytes]:
    with Records(repo) as records:
        records.catalog.refresh()
        rows = records.data.find(model=ONE, name=name, all_versions=True)
        return [content_of(records, records.data.get(ONE, name, row.version)) for row in rows]


def content_of(records: Records, item: Item) -> bytes:
    """Read an item; of many files, the content of all, in order."""
    if item.metadata.files is None:
        return records.data.read(item)
    directory = records.tree.local_path(item.metadata.location.directory)
    return b"".join((directory / file.part).read_bytes() for file in records.data.manifest(item).files)


def use_all(repo: Repo) -> list[str]:
    with Connection(repo) as connection:
        empty_spool(repo, connection, report := SyncReport())
    return report.warnings


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with two files, and one without any."""
    made = tmp_path / "source"
    (made / "deep" / "empty").mkdir(parents=True)
    (made / "a").write_bytes(b"in")
    (made / "deep" / "b").write_bytes(b"put")
    return made


@pytest.mark.parametrize("command", ["put", "append", "directory"])
def test_a_process_that_is_killed_at_any_step_has_its_input_used_once_by_the_next(
    tmp_path: Path, source: Path, command: str
) -> None:
    """Every call that changes a file, a name or what is durable is a step; the process of the last repo survives."""
    steps = {"put": 45, "append": 35, "directory": 55}[command]
    repos = []
    for number in range(steps):
        repo = init_repo(tmp_path / str(number))
        with Records(repo) as records:
            name = "log" if command == "append" else "other"
            records.data.save(ONE, name, b"begin ", streaming=True)
        repos.append(repo)
    ran = subprocess.run(
        [sys.executable, "-c", DYING, command, ",".join((ONE.type, ONE.id, ONE.name)), *(repo.root for repo in repos)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(bayou.__path__[0]).parent),
            "BAYOU_OFFLINE": "1",
            "SOURCE": str(source),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    ends = ran.stdout.split()
    assert (len(ends), ends[-1], set(ends)) == (steps, "0", {"died", "0"}), ran.stderr
    begin = [b"begin "] if command == "append" else []
    whole = [b"begin input"] if command == "append" else [b"input"]
    found = []
    for repo, end in zip(repos, ends, strict=True):
        use_all(open_repo(repo.root))
        found.append(made(repo))
        assert found[-1] == whole or (found[-1] == begin and end == "died" and whole not in found)
        assert (os.listdir(spool_directory(repo)) if spool_directory(repo).exists() else []) == []
    assert begin in found, "a process that died before its input was whole has saved nothing"


def test_an_input_is_private_and_says_what_is_to_become_of_it(repo: Repo) -> None:
    with receive(repo, "put", ONE, "log", iter([b"in", b"put"]), Options(tags={"env": "prod"})) as spooled:
        record = json.loads((spool_directory(repo) / f"{spooled.id}.json").read_bytes())

    assert stat.S_IMODE(spool_directory(repo).stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in spool_directory(repo).iterdir()} == {0o600}
    wanted = {"command": "put", "model": "one", "name": "log", "size": 5, "tags": {"env": "prod"}}
    assert {key: record[key] for key in wanted} == wanted


def test_the_input_of_a_living_process_is_left_alone(repo: Repo) -> None:
    with receive(repo, "put", ONE, "log", b"input", Options()):
        assert list(abandoned_inputs(repo)) == []
        assert use_all(repo) == []
        assert made(repo) == []

    assert len(use_all(repo)) == 1
    assert made(repo) == [b"input"]
    assert pending_inputs(repo) == []


def test_what_was_not_read_to_its_end_is_swept_by_the_next_command(repo: Repo) -> None:
    def breaks() -> object:
        yield b"half"
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        receive(repo, "put", ONE, "log", breaks(), Options())  # type: ignore[arg-type]
        os._exit(0)
    os.waitpid(child, 0)
    assert [file.suffix for file in spool_directory(repo).iterdir()] == [".raw"]

    with receive(repo, "put", ONE, "log", b"whole", Options()) as spooled:
        assert {file.stem for file in spool_directory(repo).iterdir()} == {spooled.id}


def test_content_that_fails_leaves_nothing(repo: Repo) -> None:
    def breaks() -> object:
        yield b"half"
        raise ValueError("the caller's own")

    with pytest.raises(ValueError, match="the caller's own"):
        receive(repo, "put", ONE, "log", breaks(), Options())  # type: ignore[arg-type]

    assert list(spool_directory(repo).iterdir()) == []


def test_a_volume_without_room_for_the_input_is_named_and_nothing_stays(repo: Repo) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(TreeError, match="cannot keep the input: "):
            receive(repo, "put", ONE, "log", bytes(1 << 20), Options())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert list(spool_directory(repo).iterdir()) == []


def test_a_signal_right_after_the_record_leaves_nothing(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path, data: bytes, *, mode: int, temporary: Path) -> None:
        write_file(path, data, mode=mode, temporary=temporary)
        raise KeyboardInterrupt

    monkeypatch.setattr(spool, "write_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        receive(repo, "put", ONE, "log", b"input", Options())

    assert pending_inputs(repo) == []
    assert list(spool_directory(repo).iterdir()) == []


def test_v24_an_input_that_this_user_has_not_given_here_is_never_used(repo: Repo) -> None:
    spooled: SpooledInput
    with receive(repo, "put", ONE, "log", b"input", Options()) as spooled:
        file = spool_directory(repo) / f"{spooled.id}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "owner": ["0" * 32]}))

    with pytest.raises(StateError, match="was not given by you"):
        use_all(repo)
    assert made(repo) == []


def test_a_directory_is_kept_as_it_is_now_and_its_files_are_not_copied_a_second_time(repo: Repo, source: Path) -> None:
    with receive_directory(repo, ONE, "log", source, Options(), always=False) as spooled, Records(repo) as records:
        (source / "a").write_bytes(b"changed meanwhile")
        inodes = [file.stat().st_ino for file in spooled.files.values()]
        assert {stat.S_IMODE(file.stat().st_mode) for file in spooled.files.values()} == {0o600}
        saved = records.data.use_input(spooled)
        directory = records.tree.local_path(saved.metadata.location.directory)
        assert [(directory / name).stat().st_ino for name in spooled.files] == inodes
    assert (saved.empty, saved.metadata.files, saved.metadata.size) == (1, 2, 5)
    assert saved.metadata.content_type == "inode/directory"
    assert (made(repo), os.listdir(spool_directory(repo))) == ([b"input"], [])

    (source / "a").write_bytes(b"in")
    with receive_directory(repo, ONE, "log", source, Options(), always=False) as spooled, Records(repo) as records:
        assert records.data.use_input(spooled).unchanged
    assert os.listdir(spool_directory(repo)) == []


def test_a_directory_that_was_not_copied_to_its_end_is_swept(
    repo: Repo, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies_at_the_second(path: Path) -> AbstractContextManager[BinaryIO]:
        if path.name == "part-00001":
            os.kill(os.getpid(), signal.SIGKILL)
        return create_part(path)

    monkeypatch.setattr(manifest, "create_part", dies_at_the_second)
    child = os.fork()
    if not child:
        receive_directory(repo, ONE, "log", source, Options(), always=True)
        os._exit(0)
    os.waitpid(child, 0)
    assert {file.suffix for file in spool_directory(repo).iterdir()} == {".raw", ".parts"}

    with receive(repo, "put", ONE, "log", b"whole", Options()) as spooled:
        assert {file.stem for file in spool_directory(repo).iterdir()} == {spooled.id}


def test_a_put_does_not_copy_the_input_a_second_time(repo: Repo) -> None:
    create_model(repo, "@org/shell", "one")
    with receive(repo, "put", ONE, "log", b"input", Options()) as spooled, Records(repo) as records:
        inode = spooled.path.stat().st_ino
        saved = records.data.use_input(spooled).metadata
        assert records.tree.local_path(saved.location.raw).stat().st_ino == inode
    assert saved.created_at == spooled.record.at


def test_an_input_that_equals_the_latest_version_makes_no_new_one_unless_it_is_told_to(repo: Repo) -> None:
    with Records(repo) as records:
        records.data.save(ONE, "log", b"input")
        with receive(repo, "put", ONE, "log", b"input", Options(), always=False) as spooled:
            saved = records.data.use_input(spooled)
            assert (saved.unchanged, saved.metadata.version, spooled.waits) == (True, 1, False)
        with receive(repo, "put", ONE, "log", b"input", Options()) as spooled:
            saved = records.data.use_input(spooled)
            assert (saved.unchanged, saved.metadata.version, spooled.waits) == (False, 2, False)
