"""One scenario: two clients (of an even seed) or three, one bucket, and everything that may happen to them."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayou.core.errors import (
    AlreadyExists,
    DeleteFailed,
    IndexDamaged,
    NotFound,
    PreconditionFailed,
    StoreEmptied,
    StoreError,
    StoreRestored,
    Unavailable,
)
from bayou.index.build import ChunkParams
from bayou.objectstore import keys
from bayou.objectstore.keys import KeyScope
from bayou.objectstore.retry import RetryPolicy
from bayou.objectstore.store import Store
from bayou.objectstore.transport import GetResult
from bayou.sync.report import Mode, SyncReport
from bayou_testing.faulty import Crash
from tests import api
from tests.sync.simulation.bucket import Blob, Bucket, SimTransport
from tests.sync.simulation.client import Client
from tests.sync.simulation.oracle import Oracle, Violation, found
from tests.sync.simulation.scheduler import Actor, Scheduler
from tests.sync.simulation.virtual import virtual

PATHS = ("files/a", "files/b", "audit/c/d", "outputs/e")
UNIT = "data/t/m/n/1"
FOUND = ("files/a", "files/old")
HABITS = {
    "write": 10,
    "delete": 5,
    "write a version": 5,
    "delete a version": 2,
    "write slowly": 4,
    "mark": 6,
    "die before writing": 1,
    "die before deleting": 1,
}
"""What programs do, and how often; a scenario has its own preferences."""
SMALL = ChunkParams(leaf_mod=2, leaf_max=3, branch_mod=2, branch_max=3)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a scenario is about: how often each thing goes wrong, of a thousand requests or steps."""

    clients: int
    lose: int
    late: int
    crash: int
    programs: int
    gc: bool
    compact: bool
    mishaps: bool
    found: bool
    episodes: int

    @classmethod
    def of(cls, seed: int) -> Kind:
        """Return what the scenario of a seed is about."""
        return cls.draw(random.Random(seed), clients=2 + seed % 2)

    @classmethod
    def draw(cls, rng: random.Random, clients: int) -> Kind:
        return cls(
            clients=clients,
            lose=rng.choice((0, 0, 10, 60)),
            late=rng.choice((0, 0, 20, 80)),
            crash=rng.choice((0, 5, 20, 40)),
            programs=rng.choice((0, 20, 80, 150)),
            gc=rng.random() < 0.5,
            compact=rng.random() < 0.5,
            mishaps=rng.random() < 0.35,
            found=rng.random() < 0.3,
            episodes=rng.choice((4, 8, 12)),
        )


@dataclass(eq=False)
class Late:
    """A request that is still on its way, although nobody waits for its answer."""

    who: str
    what: str
    act: Callable[[], object]


class World:
    """A scenario. `run` raises `Violation`; `trace` tells what happened."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.kind = Kind.draw(self.rng, clients=2 + seed % 2)
        self.shape = SMALL if self.rng.random() < 0.4 else ChunkParams()
        self.page_rows = self.rng.choice((2, 3, 50))
        # No file in packs, only those that are no part of a version, or all.
        self.pack_below = self.rng.choice((0, 10, 1 << 18, 1 << 18))
        self.scheduler = Scheduler(self.rng)
        self.bucket = Bucket(
            unique_etags=self.rng.random() < 0.5,
            page=self.rng.choice((2, 5, 1000)),
            delete_batch=self.rng.choice((1, 3, 1000)),
        )
        self.paths = self.rng.sample(PATHS, self.rng.choice((1, 2, 4)))
        self.habits = {name: self.rng.choice((0, 1, 1, 3)) * often for name, often in HABITS.items()} | {"write": 10}
        self.trace: list[str] = []
        self.late: list[Late] = []
        self.interleavings: set[int] = set()
        self.calm = False
        self.clients: dict[str, Client] = {}
        self.collected = False
        self.backups: list[tuple[dict[str, Blob], int]] = []
        """What the bucket had at the beginning of each episode, and how many heads there had been by then."""
        self._directory = directory
        self._contents = 0
        for number in range(self.kind.clients):
            name = "ABC"[number]
            policy = RetryPolicy(attempts=4, first_contact_attempts=4)
            store = Store(SimTransport(self.bucket, name, _Gate(self, name)), KeyScope.of("", None), policy=policy)
            self.clients[name] = Client.at(name, directory / name, store, self.pack_below)
        self.oracle = Oracle(self.bucket, self.clients)
        self.bucket.watcher = self.oracle

    # ---- the rules of the virtual world ----

    def now_ms(self) -> int:
        return self.bucket.clock

    def local_step(self, what: str) -> None:
        """Before and after a transaction: programs may act, and the process may be killed."""
        if not self.scheduler.inside:
            return
        client = self.clients[self._running()]
        if client.dead:
            raise Crash("a dead process writes nothing")
        self.scheduler.step(what)
        if not self.calm and self._chance(self.kind.crash // 4):
            self._tell(f"{client.name} is killed at {what}")
            client.dead = True
            raise Crash(what)

    def committing(self) -> None:
        """The process may be killed with its transaction, and whatever it has renamed meanwhile."""
        if self.scheduler.inside and not self.calm and self._chance(self.kind.crash):
            client = self.clients[self._running()]
            self._tell(f"{client.name} is killed before it commits")
            client.dead = True
            raise Crash("committing")

    def wait(self, seconds: float) -> None:
        self.bucket.clock += round(seconds * 1000)
        self.scheduler.step("wait")

    # ---- a scenario ----

    def run(self) -> None:
        """Play the scenario to its end."""
        with virtual(self):
            try:
                self._set_up()
                for _ in range(self.kind.episodes):
                    self._episode()
                if self._chance(300):
                    self._restore()
                self._converge()
            finally:
                self._tear_down()

    def _set_up(self) -> None:
        self._tell(f"{self.kind} {self.shape} unique_etags={self.bucket.unique_etags} rows={self.page_rows}")
        if self.kind.found:
            for path in FOUND:
                self.bucket.put("nobody", path, found(path), None)

    def _episode(self) -> None:
        """Let several clients run commands at once, to the end of all."""
        self.scheduler.mood(self.rng.choice((0.0, 0.5, 0.9, 0.98)))
        self.backups.append((dict(self.bucket.objects), len(self.oracle.versions)))
        if self.kind.found and not self.oracle.versions and not self.late and self._chance(200):
            self._remove_found()
        for client in self.clients.values():
            for _ in range(self.rng.randrange(3)):
                self._program(client)
            if self.kind.mishaps and self._chance(120):
                self._mishap(client)
        left = {name: self.rng.choice((1, 1, 1, 1, 2)) for name in self.clients}
        for name in self.rng.sample(sorted(left), self.rng.choice((0, 0, 0, 1))):
            left[name] = 0
        order: list[str] = []
        for name in left:
            self._next_command(name, left)
        while self.scheduler.actors:
            self._between()
            actor = self.scheduler.choose()
            order.append(f"{actor.name} {actor.at}")
            self.scheduler.resume(actor)
            if actor.done:
                self._ended(actor)
                self._next_command(actor.name, left)
        if len({step.split(" ")[0] for step in order}) > 1:
            self.interleavings.add(hash(tuple(order)))

    def _next_command(self, name: str, left: dict[str, int]) -> None:
        if left[name] > 0:
            left[name] -= 1
            client = self.clients[name]
            client.dead = False
            before = self.oracle.number
            what, call = self._command(client)
            self._tell(f"{name} begins {what}")
            actor = self.scheduler.start(name, call)
            actor.about = (what, before, len(self.oracle.versions))

    def _command(self, client: Client) -> tuple[str, Callable[[], Any]]:
        rng = self.rng
        drawn = rng.random()
        if self.kind.gc and drawn < 0.2:
            grace = rng.choice((0, 0, 3, 60))
            # A DELETE that is still on its way was meant under the grace of its own collection.
            pending = any(one.who == client.name and one.what.startswith("delete") for one in self.late)
            earlier = self.oracle.graces.get(client.name, 0) if pending else grace * 1000
            self.oracle.graces[client.name] = min(earlier, grace * 1000)
            self.collected = True
            return f"gc {grace}", lambda: client.gc(grace)
        if self.kind.compact and drawn < 0.4:
            grace = rng.choice((0, 3, 60))
            return f"compact {grace}", lambda: client.compact(grace)
        if 0.4 <= drawn < 0.47:
            deep = rng.random() < 0.3
            return f"verify repair deep={deep}", lambda: client.verify(repair=True, deep=deep)
        modes: tuple[Mode, ...] = ("sync", "sync", "push", "push", "pull")
        mode = rng.choice(modes)
        walk = rng.random() < 0.6
        return f"{mode} walk={walk}", lambda: client.sync(mode, walk=walk)

    def _between(self) -> None:
        """Between two steps of clients, other things happen."""
        if self.late and self._chance(60):
            self._deliver(self.rng.choice(self.late))
        if self._chance(self.kind.programs):
            self._program(self.rng.choice(list(self.clients.values())))
        for client in self.clients.values():
            if client.slow and self._chance(self.kind.programs // 2):
                self._write_slowly(client, "")
        if self._chance(200):
            self.bucket.clock += self.rng.choice((1, 1, 10, 1000, 5000))

    def _deliver(self, one: Late) -> None:
        self.late.remove(one)
        self._tell(f"late: {one.who} {one.what}")
        try:
            one.act()
        except StoreError:
            pass

    # ---- programs ----

    def _program(self, client: Client) -> None:
        """Let a program do something to a tree, while nobody, or a sync, is under way."""
        path = self.rng.choice(self.paths)
        match self.rng.choices(list(self.habits), list(self.habits.values()))[0]:
            case "write":
                self._write(client, {path: self._content(client)})
            case "delete":
                self._delete(client, [path])
            case "write a version":
                self._write_version(client)
            case "delete a version":
                self._delete(client, client.below(UNIT))
            case "write slowly":
                self._write_slowly(client, path)
            case "mark":
                self._mark(client, path)
            case "die before writing":
                self._tell(f"{client.name}: a program dies before it writes {path}")
                client.half("write", path)
                client.leave_temporary(UNIT)
                self.oracle.begun(client, path)
            case "die before deleting":
                self._tell(f"{client.name}: a program dies before it deletes {path}")
                client.half("delete", path)
                self.oracle.deleted(client, path)

    def _write_version(self, client: Client) -> None:
        """Write all files of a version, now and then one more, and leave none of an earlier writer's.

        A tree that was wiped by hand does not show those: the program knows what it had.
        """
        tag = self._content(client)
        names = ["raw", "metadata.yaml", *([f"of-{client.name}"] if self._chance(300) else [])]
        files = {f"{UNIT}/{name}": tag + b" " + name.encode() for name in names}
        self._write(client, files)
        had = {*client.below(UNIT), *(path for path in client.missed if path.startswith(f"{UNIT}/"))}
        others = sorted(had - files.keys())
        if others:
            self._delete(client, others)

    def _write_slowly(self, client: Client, path: str) -> None:
        """Begin to write a file, or end."""
        if client.slow:
            content = self._content(client)
            path = client.end_slowly(content)
            self._tell(f"{client.name}: and has written {path} = {content!r}")
            self.oracle.wrote(client, path, content)
        else:
            self._tell(f"{client.name}: a program begins to write {path}")
            client.begin_slowly(path)

    def _mark(self, client: Client, path: str) -> None:
        """Mark something dirty, or go on with what was marked."""
        if client.busy:
            self._go_on(client)
        else:
            under = self.rng.choice((None, path, path.rpartition("/")[0]))
            self._tell(f"{client.name}: a program marks {under or 'everything'}")
            client.mark(under)

    def _go_on(self, client: Client) -> None:
        program = self.rng.choice(client.busy)
        if self.rng.random() < 0.6:
            under = program.under or ""
            path = self.rng.choice(
                [one for one in self.paths if one == under or one.startswith(f"{under}/") or not under]
            )
            content = self._content(client)
            self._tell(f"{client.name}: a program scribbles {path} = {content!r}")
            client.scribble(path, content)
            self.oracle.wrote(client, path, content)
        else:
            clean = self.rng.random() < 0.7
            self._tell(f"{client.name}: the program on {program.under or 'everything'} {'ends' if clean else 'dies'}")
            client.end(program, clean=clean)

    def _write(self, client: Client, files: dict[str, bytes]) -> None:
        self._tell(f"{client.name}: writes {files}")
        client.write(files)
        for path, content in files.items():
            self.oracle.wrote(client, path, content)

    def _delete(self, client: Client, paths: list[str]) -> None:
        if not paths:
            return
        self._tell(f"{client.name}: deletes {paths}")
        client.delete(paths)
        for path in paths:
            self.oracle.deleted(client, path)

    def _mishap(self, client: Client) -> None:
        if client.slow:
            return
        if self.rng.random() < 0.5:
            self._tell(f"{client.name}: its tree is wiped")
            client.wipe()
            self.oracle.wiped(client)
        elif not client.busy:
            self._tell(f"{client.name}: its state is lost")
            client.lose_state()
            self.oracle.forgot(client)

    def _remove_found(self) -> None:
        """Let another program remove an object that was there before the store has a head."""
        path = self.rng.choice(FOUND)
        self._tell(f"somebody removes {path} from the bucket")
        self.bucket.delete("nobody", path)
        had = {client.name for client in self.clients.values() if client.content(path) == found(path)}
        self.oracle.removed.setdefault(path, had)

    def _content(self, client: Client) -> bytes:
        """Return new content; now and then one that others have too. All have one size: only the hash tells."""
        if self._chance(150):
            return b"same-%03d" % self.rng.randrange(3)
        self._contents += 1
        return b"%s-%06d" % (client.name.encode(), self._contents)

    # ---- ends ----

    def _ended(self, actor: Actor) -> None:
        what, before, heads = actor.about
        client = self.clients[actor.name]
        error = actor.error
        if isinstance(error, Crash):
            self._tell(f"{actor.name} is dead ({what})")
        elif error is not None:
            self._tell(f"{actor.name} fails at {what}: {error!r}")
            self._forgive(what, error, heads)
        else:
            self._tell(f"{actor.name} has done {what}: {_brief(actor.result)}")
            if isinstance(actor.result, SyncReport):
                self.oracle.told(client, actor.result, before)
                if actor.result.mode != "pull":
                    self.oracle.acknowledged(client, actor.result, before)
        self.oracle.check_tree(client)

    def _forgive(self, what: str, error: BaseException, heads: int) -> None:
        """A command may fail only for what the store did to it."""
        causes = list(error.failed.values()) if isinstance(error, DeleteFailed) else [error]
        lost = all(isinstance(cause, Unavailable) for cause in causes)
        if lost and not self.calm and (self.kind.lose or self.kind.late):
            return
        if isinstance(error, IndexDamaged) and self.collected and not self.calm:
            return  # a reader of an older root, and a collection without grace
        if what.startswith(("gc", "verify", "compact")) and isinstance(error, NotFound) and not heads:
            return  # there is no store yet
        raise error

    def _restore(self) -> None:
        """Restore the bucket from an older backup, in a world of its own, and let every clone sync with it, as it is.

        Many were killed just before. A clone says what has happened to the store, or goes on; it loses no file but what
        the history of the restored store has replaced or deleted since.
        """
        objects, heads = self.rng.choice(self.backups)
        self._tell(f"elsewhere the bucket is restored as it was after {heads} heads")
        history = self.oracle.versions[:heads]
        for client in self.clients.values():
            bucket = replace(self.bucket, objects=dict(objects), watcher=None)
            policy = RetryPolicy(attempts=1, first_contact_attempts=1)
            store = Store(SimTransport(bucket, client.name, _Open()), KeyScope.of("", None), policy=policy)
            root = self._directory / "restored" / client.name
            shutil.copytree(client.repo.root, root)
            copy = Client.reopened(client.name, root, store, self.pack_below)
            files = copy.files
            try:
                self._tell(f"{client.name} has done sync there: {_brief(copy.sync('sync', walk=True))}")
            except (StoreRestored, StoreEmptied) as error:
                self._tell(f"{client.name} refuses to sync there: {error!r}")
            left = copy.files
            for path, content in files.items():
                op = self.oracle.ops.get((client.name, path))
                if (op is not None and op.content is None) or content in left.values() or content in copy.kept(path):
                    continue
                if not self.oracle.superseded(path, content, history):
                    raise Violation(f"{client.name} has lost {path} = {content!r}, which the restored store never had")
        shutil.rmtree(self._directory / "restored")

    def _converge(self) -> None:
        """Let everything arrive and end, sync everybody, and look whether all is one."""
        self._tell("all is calm from here")
        self.calm = True
        self.rng.shuffle(self.late)
        while self.late:
            self._deliver(self.late[0])
        for client in self.clients.values():
            client.dead = False
            while client.busy:
                client.end(client.busy[0], clean=True)
            while client.slow:
                content = self._content(client)
                self.oracle.wrote(client, client.end_slowly(content), content)
        untracked: dict[str, list[str]] = {}
        for turn in range(3):
            for client in self.clients.values():
                before = self.oracle.number
                report = client.sync("sync", walk=True)
                self._tell(f"{client.name} has done sync: {_brief(report)}")
                untracked[client.name] = report.untracked
                self.oracle.acknowledged(client, report, before)
                self.oracle.check_tree(client)
                if report.failed or set(report.missing) - self.oracle.removed.keys():
                    raise Violation(f"{client.name} cannot sync in peace: {report.failed} {report.missing}")
                if turn == 2 and self.oracle.versions and (report.engine, report.requests.total) != ("fast", 1):
                    raise Violation(f"{client.name} is not at rest: {_brief(report)}")
        self.oracle.check_all()
        self._all_equal(untracked)
        if self.rng.random() < 0.25 and self.oracle.versions:
            self._clean()

    def _all_equal(self, untracked: dict[str, list[str]]) -> None:
        if not self.oracle.versions:
            return
        head = self.oracle.versions[-1]
        truth = {path: self.oracle.content(entry) for path, entry in head.entries.items()}
        for client in self.clients.values():
            files = client.files
            extra = {path for path in files if path not in truth}
            loose = set(untracked[client.name])
            extra -= self.oracle.removed.keys() & loose
            loose -= self.oracle.removed.keys()
            if not self.kind.mishaps:
                self.oracle.check_removed(client)
            if extra - loose:
                raise Violation(f"{client.name} has {extra - loose}, and the store has not")
            if loose and not client.lost_state:
                raise Violation(f"{client.name} lists {loose} as untracked, and it never lost its state")
            if {path: files[path] for path in files if path in truth} != truth:
                raise Violation(f"{client.name} has {files}, and the store {truth}")
            status = api.status(client.repo)
            if not status.in_sync or status.journal_paths:
                raise Violation(f"{client.name} says that it is not in sync: {status}")

    def _clean(self) -> None:
        """Collect everything, and look whether exactly what the head names is left."""
        client = next(iter(self.clients.values()))
        self.oracle.graces[client.name] = 0
        for _ in range(2):  # the list of the trash itself is trash only once it is empty
            self.bucket.clock += 1000
            client.gc(0)
        report = client.verify(repair=False, deep=True)
        if not report.ok or report.leftovers or report.trash:
            raise Violation(f"after a collection: {report}")
        head = self.oracle.versions[-1]
        extra = self.bucket.objects.keys() - head.keys - {keys.HEAD}
        expected = {path for path in FOUND if self.kind.found}
        if extra - expected:
            raise Violation(f"a collection leaves {extra}")

    def _tear_down(self) -> None:
        self.calm = True
        for client in self.clients.values():
            client.dead = True
        while self.scheduler.actors:
            self.scheduler.resume(self.scheduler.actors[0])
        for client in self.clients.values():
            while client.busy:
                client.end(client.busy[0], clean=False)
            while client.slow:
                client.end_slowly(b"")
        shutil.rmtree(self._directory, ignore_errors=True)

    # ---- small things ----

    def verifying(self, who: str) -> bool:
        """Whether a client reads only to compare."""
        actor = self.scheduler.current
        return actor is not None and actor.name == who and actor.about[0].startswith(("verify", "compact"))

    def _running(self) -> str:
        actor = self.scheduler.current
        assert actor is not None
        return actor.name

    def _chance(self, of_a_thousand: int) -> bool:
        return of_a_thousand > 0 and self.rng.randrange(1000) < of_a_thousand

    def _tell(self, line: str) -> None:
        self.trace.append(line)


class _Open:
    """Lets every request through."""

    def sending(self, key: str, data: bytes, etag: str | None) -> None:
        pass

    def pass_through(self, verb: str, key: str, act: Callable[[], object]) -> object:
        return act()


class _Gate:
    """Where requests of one client wait for their turn and meet their fate."""

    def __init__(self, world: World, who: str) -> None:
        self._world = world
        self._who = who

    def sending(self, key: str, data: bytes, etag: str | None) -> None:
        if key == keys.HEAD:
            self._world.oracle.sending_head(self._who, data, etag)

    def pass_through(self, verb: str, key: str, act: Callable[[], object]) -> object:
        world, client = self._world, self._world.clients[self._who]
        if not world.scheduler.inside:
            answer = act()
            if isinstance(answer, GetResult):
                world.oracle.downloaded(self._who, key, bytes(answer.data))
            return answer
        if client.dead:
            raise Crash("a dead process sends nothing")
        world.scheduler.step(f"{verb} {key}")
        if client.dead:
            raise Crash("a dead process sends nothing")
        fate = self._fate(verb, key)
        world._tell(f"{self._who} {verb} {_short(key)}{f' ({fate})' if fate else ''}")
        if fate is None:
            answer = act()
            if isinstance(answer, GetResult) and not world.verifying(self._who):
                world.oracle.downloaded(self._who, key, bytes(answer.data))
            return answer
        when, _, end = fate.partition(", ")
        if when == "late":
            world.late.append(Late(self._who, f"{verb} {_short(key)}", act))
        elif when == "after":
            try:
                act()
            except (AlreadyExists, NotFound, PreconditionFailed):
                pass
        if end == "killed":
            client.dead = True
            raise Crash(fate)
        raise Unavailable(f"no answer ({fate})")

    def _fate(self, verb: str, key: str) -> str | None:
        world = self._world
        if world.calm:
            return None
        # The swap is one request of many, and the one that matters most.
        more = 5 if verb == "put" and key == keys.HEAD else 1
        for end, chance in (("killed", world.kind.crash), ("lost", world.kind.lose)):
            if world._chance(more * chance):
                return f"{world.rng.choice(('before', 'after'))}, {end}"
        if verb in ("put", "delete") and world._chance(more * world.kind.late):
            return f"late, {world.rng.choice(('lost', 'lost', 'killed' if world.kind.crash else 'lost'))}"
        return None


def _short(key: str) -> str:
    """Shorten digests and ids, for people."""
    if len(key) > 60 and key.startswith(f"{keys.NODES}/"):
        return f"node …{hashlib.sha256(key.encode()).hexdigest()[:5]}"
    return key if len(key) < 100 else f"{key[:80]}…"


def _brief(report: object) -> str:
    if isinstance(report, SyncReport):
        return (
            f"pulled {report.pulled.files}-{report.pulled.deleted} pushed {report.pushed.files}-{report.pushed.deleted}"
            f" conflicts {[one.path for one in report.conflicts]} untracked {report.untracked} failed {report.failed}"
            f" missing {report.missing} {report.engine} {report.requests.total} {report.warnings or ''}"
        )
    return str(report)
