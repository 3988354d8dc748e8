"""What must be true when all is over, of what the processes said and of what the store went through."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.sync.processes.history import Version
from tests.sync.processes.worker import Begun, Done, Kept, Line, Synced


@dataclass
class Account:
    """What the processes of one clone have said, and the ids that its conflicts kept, by path."""

    name: str
    lines: Sequence[Line]
    copies: Mapping[str, set[str]]
    begun: dict[int, Begun] = field(init=False)
    done: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.begun = {line.number: line for line in self.lines if isinstance(line, Begun)}
        self.done = {line.number for line in self.lines if isinstance(line, Done)}

    def known(self, path: str, before: int) -> set[str]:
        """Return what this clone had had at a path when it announced a change of it."""
        found: set[str | None] = set()
        for number, change in self.begun.items():
            if number <= before and path in change.paths:
                found.add(change.saw[path])
                if number < before:
                    found.add(change.paths[path])
        return {one for one in found if one is not None}

    def last(self, path: str, through: int) -> Begun | None:
        """Return the newest change of a path that was announced by then."""
        found = [change for number, change in self.begun.items() if number <= through and path in change.paths]
        return max(found, key=lambda change: change.number, default=None)

    def deleted_elsewhere(self, identity: str | None, through: int) -> bool:
        """Whether this clone deleted it by then, maybe under the other number that a version had got."""
        return any(
            gone is None and change.saw[path] == identity
            for number, change in self.begun.items()
            if number <= through
            for path, gone in change.paths.items()
        )

    def promised(self) -> Iterator[tuple[Synced, str, Begun]]:
        """Yield every change that a push speaks for: it was made, is the newest of its path, and was not left out.

        A delete that met a change in the store is over once that was told: no later push speaks for it.
        """
        over: set[tuple[str, int]] = set()
        for line in self.lines:
            if isinstance(line, Kept):
                over |= {(path, change.number) for path in line.paths if (change := self.last(path, line.number))}
            if isinstance(line, Synced) and line.finished:
                for path in {path for change in self.begun.values() for path in change.paths}:
                    change = self.last(path, line.number)
                    if change is None or change.number not in self.done or (path, change.number) in over:
                        continue
                    if path not in line.left:
                        yield line, path, change


def judge(history: Sequence[Version], accounts: Iterable[Account]) -> None:
    """Raise an `AssertionError` that says what was lost, came back, or was torn."""
    by_name = {account.name: account for account in accounts}
    commits = {version.commit: version.seq for version in history}
    moments = _moments(history)
    for before, after in zip([Version(0, "", "", {}), *history], history, strict=False):
        _whole(after, by_name)
        for path in before.ids.keys() | after.ids.keys():
            old, new = before.ids.get(path), after.ids.get(path)
            if old != new:
                _legitimate(by_name, path, old, new, after, moments)
    for account in by_name.values():
        for push, path, change in account.promised():
            if push.commit is not None:
                assert commits.get(push.commit) == push.seq, f"{account.name}'s commit {push} is not in the log"
            if not account.deleted_elsewhere(change.paths[path], push.number):
                _kept(account, path, change, moments)
            _gone(account, path, change, push, history)


def version_of(path: str) -> str | None:
    """Return the version directory that a path lies in; what workers write there has files only."""
    return path.rpartition("/")[0] if path.startswith("data/") else None


Moments = Mapping[str, Mapping[str, list[int]]]


def _moments(history: Sequence[Version]) -> Moments:
    """Return, for each path and id, the versions that had it."""
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for version in history:
        for path, identity in version.ids.items():
            found[path][identity].append(version.seq)
    return found


def _legitimate(
    accounts: Mapping[str, Account], path: str, old: str | None, new: str | None, after: Version, moments: Moments
) -> None:
    """Check that whoever committed a change knew what it replaces, and that nothing comes back."""
    account = accounts[after.by]
    told = f"{after.by}'s commit {after.seq} makes {path} {new}, which was {old}"
    if new is not None:
        assert moments[path][new][0] == after.seq, f"it comes back: {told}"
        assert new.startswith(f"{after.by}-"), f"that is not its own: {told}"
    if old is None:
        return
    number = int(new.rpartition("-")[2]) if new is not None else None
    changes = [
        change.number
        for change in account.begun.values()
        if path in change.paths and (change.number == number if number is not None else change.paths[path] is None)
    ]
    assert changes, f"nobody asked for it: {told}"
    assert any(old in account.known(path, change) for change in changes), f"an update is lost: {told}"


def _whole(version: Version, accounts: Mapping[str, Account]) -> None:
    """Check that no version directory is torn: who sees its metadata has the content that belongs to it."""
    units: dict[str, dict[str, str]] = defaultdict(dict)
    for path, identity in version.ids.items():
        unit = version_of(path)
        if unit is not None:
            units[unit][path.removeprefix(f"{unit}/")] = identity
    whole = [files["metadata.yaml"] for files in units.values() if "metadata.yaml" in files]
    assert len(set(whole)) == len(whole), f"{version.by}'s commit {version.seq} has a version twice: {units}"
    for unit, files in units.items():
        told = f"{version.by}'s commit {version.seq} tears {unit} apart: {files}"
        if "metadata.yaml" in files:
            assert "raw" in files, told
            assert len(set(files.values())) == 1, told
        else:
            # Content without metadata is what a killed writer, or a killed deleter, leaves; nobody sees it.
            assert any(
                path.startswith(unit) and number not in account.done
                for account in accounts.values()
                for number, change in account.begun.items()
                for path in change.paths
            ), told


def _kept(account: Account, path: str, change: Begun, moments: Moments) -> None:
    """Check that what was written went up, or that a conflict kept it."""
    identity = change.paths[path]
    if identity is None:
        return
    unit = version_of(path)
    if unit is None:
        places = {path}
    else:  # a version that somebody else had the number of may have another one
        name, file = unit.rpartition("/")[0], path.rpartition("/")[2]
        places = {one for one in moments if one.startswith(f"{name}/") and one.endswith(f"/{file}")} | {path}
    assert any(moments[one].get(identity) for one in places if one in moments) or identity in account.copies.get(
        path, ()
    ), f"{account.name}'s push speaks for {path} = {identity}, and it is nowhere"


def _gone(account: Account, path: str, change: Begun, push: Synced, history: Sequence[Version]) -> None:
    """Check that what was replaced or deleted stays away, once the push has returned that speaks for it."""
    identity = change.paths[path]
    if identity is not None and identity in account.copies.get(path, ()):
        return
    replaced = account.known(path, change.number) - {identity}
    for version in history:
        if version.at > push.at or version is history[-1]:
            assert version.ids.get(path) not in replaced, (
                f"{account.name}'s push {push.seq} speaks for {path} = {identity}, and version {version.seq} has "
                f"{version.ids.get(path)} again"
            )
