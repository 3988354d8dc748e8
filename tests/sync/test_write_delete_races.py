"""A writer and a deleter of one path at the same moment: one of them wins, the old content never comes back (V7)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import combinations

import pytest

from bayou.state.journal import Journal
from bayou.sync.service import Datastore
from tests.sync import children
from tests.sync.conftest import Clone, Team

PATH = "files/x"
OLD, NEW = b"old", b"new"
STEPS = 3

ORDERS = [
    "".join("w" if at in writing else "d" for at in range(2 * STEPS))
    for writing in combinations(range(2 * STEPS), STEPS)
]


class Program:
    """A process that writes or deletes one file, a step at a time: it opens a row, makes the change, closes the row."""

    def __init__(self, clone: Clone, kind: str) -> None:
        self._clone = clone
        self._kind = kind
        self._datastore = Datastore(clone.repo)
        self._steps = 0

    def step(self) -> None:
        journal = self._datastore.tree._journal
        assert isinstance(journal, Journal)
        match self._steps:
            case 0:
                self._ticket = journal.open("write" if self._kind == "w" else "delete", [PATH])
            case 1:
                self._change()
            case _:
                journal.close(self._ticket)
        self._steps += 1

    def end(self) -> None:
        """End; if it has not closed its row by now, it has died."""
        self._datastore.close()

    def _change(self) -> None:
        file = self._clone.repo.tree_root / PATH
        if self._kind == "d":
            file.unlink(missing_ok=True)
        else:
            new = file.with_name("new")
            new.write_bytes(NEW)
            os.replace(new, file)


def race(clone: Clone, order: str) -> None:
    """Let a writer and a deleter go on in this order; who does not get to its third step dies before it."""
    programs = {kind: Program(clone, kind) for kind in "wd"}
    for kind in order:
        programs[kind].step()
    for program in programs.values():
        program.end()


def check(team: Team, clone: Clone, expected: bytes | None, what: str) -> None:
    """Sync, and look whether everybody has what this tree had, and whether that is the end of it."""
    clone.sync()
    fresh = team.clone(f"fresh-{what}")
    fresh.sync()
    both = {} if expected is None else {PATH: expected}
    assert clone.files == both, what
    assert fresh.files == both, what
    assert clone.status().journal_paths == 0, what
    assert clone.sync().engine == "fast", what


@pytest.mark.parametrize("order", ORDERS)
def test_what_the_tree_has_in_the_end_is_what_everybody_gets(team: Team, order: str) -> None:
    clone = team.clone("a")
    clone.write(PATH, OLD)
    clone.sync()
    race(clone, order)
    changes = [kind for at, kind in enumerate(order) if order[:at].count(kind) == 1]
    check(team, clone, NEW if changes[-1] == "w" else None, order)


def cut_short(order: str) -> Sequence[str]:
    """Return what is left of an order if one of the two dies after its first or second step."""
    last = {kind: [at for at, one in enumerate(order) if one == kind] for kind in "wd"}
    return ["".join(one for at, one in enumerate(order) if at not in last[kind][2:]) for kind in "wd"]


@pytest.mark.parametrize("order", sorted({cut for order in ORDERS for cut in cut_short(order)}))
def test_one_of_the_two_dies_before_it_can_say_that_it_is_done(team: Team, order: str) -> None:
    clone = team.clone("a")
    clone.write(PATH, OLD)
    clone.sync()
    race(clone, order)
    changes = [kind for at, kind in enumerate(order) if order[:at].count(kind) == 1]
    check(team, clone, NEW if changes[-1] == "w" else None, order)


WRITER = """
from bayou.repo import open_repo
from bayou.sync.service import Datastore

with Datastore(open_repo(sys.argv[1])) as datastore:
    for number in range(60):
        datastore.tree.write("files/x", f"new {number}".encode())
"""

DELETER = WRITER.replace(
    'datastore.tree.write("files/x", f"new {number}".encode())', 'datastore.tree.delete("files/x")'
)
SYNCER = WRITER.replace('datastore.tree.write("files/x", f"new {number}".encode())', "datastore.sync.push_changed()")


def test_processes_that_write_delete_and_push_one_file_end_as_one_of_them_meant(team: Team) -> None:
    clone = team.clone("a")
    clone.write(PATH, OLD)
    clone.sync()
    racing = [children.start(body, clone.repo.root) for body in (WRITER, DELETER, SYNCER)]
    for process in racing:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors.decode()
    left = clone.files.get(PATH)
    assert left != OLD
    check(team, clone, left, "processes")
