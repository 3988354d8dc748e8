"""From a file to a workflow: every key and value is checked, and everything that is wrong is told at once.

What waits for what: unknown names, cycles, and what has ended before a step begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from bayou.core.documents import Place, Source
from bayou.core.text import did_you_mean
from bayou.models.definition import is_id
from bayou.workflows.definition import DEFAULT_CONCURRENCY, WHEN, Edge, Job, Step, Workflow

T = TypeVar("T")

TOP = ("id", "name", "description", "inputs", "tags", "concurrency", "jobs")
JOB = ("name", "description", "depends_on", "guard", "concurrency", "steps")
STEP = (
    *("name", "description", "model", "method", "inputs", "assert", "message"),
    *("depends_on", "for_each", "guard", "allow_failure", "concurrency"),
)


class WorkflowProblem(Struct, frozen=True):
    """One thing that is wrong with a workflow, and where."""

    where: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


def read_workflow(source: Source, name: str) -> tuple[Workflow | None, list[WorkflowProblem]]:
    """Return the workflow, and what is wrong with it; None where too little is right to go on."""
    reader = _Reader(source, [])
    workflow = reader.workflow(name)
    return workflow, reader.problems


class _Reader:
    """Reads one file. What is wrong is noted, and reading goes on with a value that is harmless."""

    def __init__(self, source: Source, problems: list[WorkflowProblem]) -> None:
        self._source = source
        self.problems = problems

    def workflow(self, name: str) -> Workflow | None:
        top = self._source.value
        if not isinstance(top, dict):
            self._wrong((), "not a mapping of keys to values", f"known keys: {', '.join(TOP)}")
            return None
        self._known((), TOP)
        for key in ("id", "name", "jobs"):
            if key not in top:
                self._wrong((), f"it has no {key}", "a workflow has id, name and jobs")
        said = self._text((), "name", name)
        if said != name:
            self._wrong(("name",), f"name is {said}, but the file's name says {name}", "rename the file, or the line")
        workflow_id = self._text((), "id", "")
        if workflow_id and not is_id(workflow_id):
            self._wrong(("id",), f"id is not a UUID: {workflow_id}", "bring back the line that was committed")
        jobs = self._each((), "jobs", self._job)
        self._named_once(jobs, "job")
        return Workflow(
            id=workflow_id,
            name=name,
            source=self._source,
            jobs=tuple(jobs),
            inputs=self._inputs(),
            tags=self._tags(),
            concurrency=self._concurrency(()) or DEFAULT_CONCURRENCY,
        )

    def _job(self, place: Place) -> Job:
        self._known(place, JOB)
        name = self._name(place, "job")
        steps = self._each(place, "steps", lambda at: self._step(at, name))
        if "steps" not in self._at(place):
            self._wrong(place, "a job has steps", None)
        self._named_once(steps, "step")
        return Job(
            name=name,
            place=place,
            steps=tuple(steps),
            depends_on=self._edges(place, "job"),
            guard=self._guard(place),
            concurrency=self._concurrency(place),
        )

    def _step(self, place: Place, job: str) -> Step:
        self._known(place, STEP)
        found = self._at(place)
        asserts = self._asserts(place)
        if "assert" in found:
            extra = [key for key in ("model", "method", "inputs") if key in found]
            if extra:
                self._wrong((*place, extra[0]), f"a step that asserts has no {extra[0]}", "make it two steps")
        else:
            for key in ("model", "method"):
                if key not in found:
                    self._wrong(place, f"a step has a {key}", "name a model and its method, or say what to assert")
            if "message" in found:
                self._wrong((*place, "message"), "only a step that asserts has a message", None)
        for_each = found.get("for_each")
        if "for_each" in found and not isinstance(for_each, list | dict) and not _has_expression(for_each):
            self._wrong((*place, "for_each"), "for_each must be a list, a mapping, or an expression that is one", None)
        return Step(
            name=self._name(place, "step"),
            job=job,
            place=place,
            model=self._text(place, "model", "") or None,
            method=self._text(place, "method", "") or None,
            inputs=self._mapping(place, "inputs"),
            asserts=asserts,
            message=self._text(place, "message", "") or None,
            depends_on=self._edges(place, "step"),
            for_each=for_each,
            guard=self._guard(place),
            allow_failure=self._truth(place, "allow_failure"),
            concurrency=self._concurrency(place),
        )

    def _asserts(self, place: Place) -> tuple[str, ...]:
        said = self._at(place).get("assert")
        if said is None:
            if "assert" in self._at(place):
                self._wrong((*place, "assert"), "assert must be an expression, or a list of them", None)
            return ()
        found = said if isinstance(said, list) else [said]
        for at, one in enumerate(found):
            if not _has_expression(one):
                where = (*place, "assert", at) if isinstance(said, list) else (*place, "assert")
                self._wrong(where, "assert must be an expression", "like ${{ inputs.count > 0 }}")
        return tuple(str(one) for one in found)

    def _edges(self, place: Place, kind: str) -> tuple[Edge, ...]:
        said = self._at(place).get("depends_on")
        if said is None:
            return ()
        if not isinstance(said, list):
            self._wrong((*place, "depends_on"), "depends_on must be a list", f"like [{said}]")
            return ()
        edges = []
        for at, one in enumerate(said):
            where: Place = (*place, "depends_on", at)
            if isinstance(one, str):
                edges.append(Edge(one, "succeeded", where))
                continue
            if not isinstance(one, dict) or not isinstance(one.get(kind), str):
                self._wrong(where, f"not the name of a {kind}", f"like {{{kind}: name, when: failed}}")
                continue
            self._known(where, (kind, "when"))
            when = one.get("when", "succeeded")
            if when not in WHEN:
                self._wrong((*where, "when"), f"when is {when}", f"it is one of {', '.join(WHEN)}")
                when = "succeeded"
            edges.append(Edge(one[kind], when, where))
        return tuple(edges)

    def _inputs(self) -> dict[str, dict[str, Any]]:
        found = self._mapping((), "inputs")
        for name, schema in found.items():
            if not isinstance(schema, dict):
                self._wrong(("inputs", name), f"{name} is no schema", "like {type: string, default: localhost}")
            if not name.isidentifier():
                self._wrong(("inputs", name), f"an input cannot be called {name}", "letters, digits and _")
        return {name: schema for name, schema in found.items() if isinstance(schema, dict)}

    def _tags(self) -> dict[str, str]:
        found = self._mapping((), "tags")
        for key, value in found.items():
            if not isinstance(value, str):
                self._wrong(("tags", key), "tags must be texts", 'put it in quotes, as cost: "12"')
        return {key: value for key, value in found.items() if isinstance(value, str)}

    def _name(self, place: Place, kind: str) -> str:
        if "name" not in self._at(place):
            self._wrong(place, f"a {kind} has a name", None)
            return f"{kind} {place[-1]}"
        name = self._text(place, "name", f"{kind} {place[-1]}")
        if any(sign in name for sign in "[]/") or name != name.strip() or not name.isprintable():
            self._wrong((*place, "name"), f"a {kind} cannot be called {name!r}", "leave out brackets and slashes")
        return name

    def _guard(self, place: Place) -> str | bool | None:
        said = self._at(place).get("guard")
        if said is None or isinstance(said, bool) or (isinstance(said, str) and _has_expression(said)):
            return said
        self._wrong((*place, "guard"), "guard must be an expression, true or false", "like ${{ inputs.deploy }}")
        return None

    def _concurrency(self, place: Place) -> int | None:
        said = self._at(place).get("concurrency")
        if said is None or (isinstance(said, int) and not isinstance(said, bool) and said >= 1):
            return said
        self._wrong((*place, "concurrency"), f"concurrency must be a number from 1, and not {said}", None)
        return None

    def _truth(self, place: Place, key: str) -> bool:
        said = self._at(place).get(key, False)
        if not isinstance(said, bool):
            self._wrong((*place, key), f"{key} must be true or false", None)
            return False
        return said

    def _text(self, place: Place, key: str, default: str) -> str:
        said = self._at(place).get(key)
        if key in self._at(place) and (not isinstance(said, str) or not said):
            self._wrong((*place, key), f"{key} must be a text", "put it in quotes")
        return said if isinstance(said, str) and said else default

    def _mapping(self, place: Place, key: str) -> dict[str, Any]:
        said = self._at(place).get(key)
        if said is None:
            return {}
        if not isinstance(said, dict):
            self._wrong((*place, key), f"{key} must be a mapping of names to values", None)
            return {}
        return said

    def _each(self, place: Place, key: str, read: Callable[[Place], T]) -> list[T]:
        said = self._at(place).get(key)
        if said is None:
            return []
        if not isinstance(said, list) or not said:
            self._wrong((*place, key), f"{key} must be a list, with something in it", None)
            return []
        places: list[Place] = [(*place, key, at) for at in range(len(said))]
        good = []
        for one in places:
            if isinstance(self._at(one), dict):
                good.append(read(one))
            else:
                self._wrong(one, f"each of {key} is a mapping of keys to values", None)
        return good

    def _named_once(self, found: Iterable[Job | Step], kind: str) -> None:
        seen: set[str] = set()
        for one in found:
            if one.name in seen:
                self._wrong((*one.place, "name"), f"there are two of the {kind} {one.name}", "rename one of them")
            seen.add(one.name)

    def _known(self, place: Place, keys: Sequence[str]) -> None:
        for key in self._at(place):
            if key not in keys:
                self._wrong((*place, key), f"unknown key {key}", nearest(key, keys, "known keys"))

    def _at(self, place: Place) -> Any:
        found = self._source.value
        for key in place:
            found = found[key]
        return found

    def _wrong(self, place: Place, message: str, hint: str | None) -> None:
        self.problems.append(WorkflowProblem(self._source.where(place), message, hint))


def nearest(word: str, known: Iterable[str], what: str) -> str:
    """Say which known word is the nearest, or which there are."""
    words = list(known)
    return did_you_mean(word, words, f"{what}: {', '.join(words) or 'none'}")


def _has_expression(value: object) -> bool:
    return isinstance(value, str) and "${{" in value


def check_graph(workflow: Workflow) -> list[WorkflowProblem]:
    """Return the edges that lead nowhere, and those that lead in a circle."""
    problems = list(_check(workflow.source, workflow.jobs, "job"))
    for job in workflow.jobs:
        problems += _check(workflow.source, job.steps, "step")
    return problems


def before(workflow: Workflow, job: Job, step: Step) -> list[tuple[Job, Step]]:
    """Return the steps that have surely ended when a step begins: those it waits for, through others too.

    They are in the order of the file; those of the step's own job come last.
    """
    jobs = ancestors(job.name, {one.name: one.depends_on for one in workflow.jobs})
    steps = ancestors(step.name, {one.name: one.depends_on for one in job.steps})
    earlier = [(one, each) for one in workflow.jobs if one.name in jobs for each in one.steps]
    return earlier + [(job, one) for one in job.steps if one.name in steps]


def ancestors(name: str, edges: Mapping[str, Sequence[Edge]]) -> set[str]:
    """Return all that comes before `name`, near or far."""
    found: set[str] = set()
    waiting = [edge.on for edge in edges.get(name, ())]
    while waiting:
        one = waiting.pop()
        if one not in found and one in edges:
            found.add(one)
            waiting += [edge.on for edge in edges[one]]
    return found


def _check(source: Source, nodes: Sequence[Job | Step], kind: str) -> Iterator[WorkflowProblem]:
    names = {node.name for node in nodes}
    for node in nodes:
        for edge in node.depends_on:
            if edge.on not in names:
                known = nearest(edge.on, sorted(names - {node.name}), f"{kind}s here")
                yield WorkflowProblem(
                    source.where(edge.place), f"{node.name} depends on a {kind} {edge.on}: none here", known
                )
    edges = {node.name: node.depends_on for node in nodes}
    told: set[str] = set()
    for node in nodes:
        circle = _circle(node.name, edges)
        if circle and not told & set(circle):
            told |= set(circle)
            where = next(edge for edge in node.depends_on if edge.on == circle[1])
            yield WorkflowProblem(
                source.where(where.place),
                f"{kind}s wait for each other: {' → '.join(circle)}",
                "take one of these dependencies out",
            )


def _circle(name: str, edges: Mapping[str, Sequence[Edge]]) -> list[str] | None:
    """Return a way from a node back to itself, shortest first."""
    ways = [[name]]
    seen = {name}
    for way in ways:
        for edge in edges.get(way[-1], ()):
            if edge.on == name:
                return [*way, name]
            if edge.on not in seen:
                seen.add(edge.on)
                ways.append([*way, edge.on])
    return None
