"""Reading a workflow from its file: every key and value is checked, and all problems are reported at once.

`check_graph` finds dependencies on unknown names, and cycles; `before` returns the steps that end before a step begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from bayou.core.clock import parse_duration
from bayou.core.documents import KeyPath, Source
from bayou.core.text import did_you_mean
from bayou.models.definition import is_id
from bayou.workflows.definition import (
    DEFAULT_CONCURRENCY,
    MAX_DELAY_S,
    MAX_RETRIES,
    MAX_TIMEOUT_S,
    WHEN,
    Edge,
    Job,
    Step,
    Workflow,
)

T = TypeVar("T")

TOP = ("id", "name", "description", "inputs", "tags", "concurrency", "jobs")
JOB = ("name", "description", "depends_on", "guard", "concurrency", "steps")
STEP = (
    *("name", "description", "model", "method", "inputs", "assert", "message"),
    *("depends_on", "for_each", "guard", "allow_failure", "concurrency"),
    *("retries", "retry_delay", "timeout"),
)
_ATTEMPTS = ("retries", "retry_delay", "timeout")


class WorkflowProblem(Struct, frozen=True):
    """One problem of a workflow, with its file and line."""

    where: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


def read_workflow(source: Source, name: str) -> tuple[Workflow | None, list[WorkflowProblem]]:
    """Return the workflow, and its problems; None if the file is no mapping."""
    reader = _Reader(source, [])
    workflow = reader.workflow(name)
    return workflow, reader.problems


def check_graph(workflow: Workflow) -> list[WorkflowProblem]:
    """Return the problems of dependencies: unknown names, and cycles."""
    problems = list(_check_edges(workflow.source, workflow.jobs, "job"))
    for job in workflow.jobs:
        problems += _check_edges(workflow.source, job.steps, "step")
    return problems


def before(workflow: Workflow, job: Job, step: Step) -> list[tuple[Job, Step]]:
    """Return the steps that have ended when a step begins: those that it depends on, directly or through others.

    They are in the order of the file; those of the step's own job come last.
    """
    jobs = ancestors(job.name, {other.name: other.depends_on for other in workflow.jobs})
    steps = ancestors(step.name, {other.name: other.depends_on for other in job.steps})
    earlier = [(other, each) for other in workflow.jobs if other.name in jobs for each in other.steps]
    return earlier + [(job, each) for each in job.steps if each.name in steps]


def ancestors(name: str, edges: Mapping[str, Sequence[Edge]]) -> set[str]:
    """Return all names that `name` depends on, directly or through others."""
    found: set[str] = set()
    waiting = [edge.on for edge in edges.get(name, ())]
    while waiting:
        current = waiting.pop()
        if current not in found and current in edges:
            found.add(current)
            waiting += [edge.on for edge in edges[current]]
    return found


def nearest_hint(word: str, known: Iterable[str], what: str) -> str:
    """Return a hint: the nearest known word, or all of them."""
    words = list(known)
    return did_you_mean(word, words, f"{what}: {', '.join(words) or 'none'}")


class _Reader:
    """Reads one file. It collects problems, and continues with a harmless value in place of a wrong one."""

    def __init__(self, source: Source, problems: list[WorkflowProblem]) -> None:
        self._source = source
        self.problems = problems

    def workflow(self, name: str) -> Workflow | None:
        top = self._source.value
        if not isinstance(top, dict):
            self._report((), "not a mapping of keys to values", f"known keys: {', '.join(TOP)}")
            return None
        self._check_keys((), TOP)
        for key in ("id", "name", "jobs"):
            if key not in top:
                has = "a workflow has id (a new UUID; `bayou workflow create` writes one), name and jobs"
                self._report((), f"it has no {key}", has)
        value = self._text((), "name", name)
        if value != name:
            self._report(("name",), f"name is {value}, but the file's name says {name}", "rename the file, or the line")
        workflow_id = self._text((), "id", "")
        if workflow_id and not is_id(workflow_id):
            self._report(("id",), f"id is not a UUID: {workflow_id}", "bring back the line that was committed")
        jobs = self._each((), "jobs", self._job)
        self._check_unique(jobs, "job")
        return Workflow(
            id=workflow_id,
            name=name,
            source=self._source,
            jobs=tuple(jobs),
            inputs=self._inputs(),
            tags=self._tags(),
            concurrency=self._concurrency(()) or DEFAULT_CONCURRENCY,
        )

    def _job(self, key_path: KeyPath) -> Job:
        self._check_keys(key_path, JOB)
        name = self._name(key_path, "job")
        steps = self._each(key_path, "steps", lambda at: self._step(at, name))
        if "steps" not in self._at(key_path):
            self._report(key_path, "a job has steps", None)
        self._check_unique(steps, "step")
        return Job(
            name=name,
            key_path=key_path,
            steps=tuple(steps),
            depends_on=self._edges(key_path, "job"),
            guard=self._guard(key_path),
            concurrency=self._concurrency(key_path),
        )

    def _step(self, key_path: KeyPath, job: str) -> Step:
        self._check_keys(key_path, STEP)
        found = self._at(key_path)
        asserts = self._asserts(key_path)
        if "assert" in found:
            for extra in ("model", "method", "inputs"):
                if extra in found:
                    self._report((*key_path, extra), f"a step that asserts has no {extra}", "make it two steps")
            for extra in _ATTEMPTS:
                if extra in found:
                    self._report(
                        (*key_path, extra), f"a step that asserts has no {extra}", "methods of models have them"
                    )
        else:
            for key in ("model", "method"):
                if key not in found:
                    self._report(key_path, f"a step has a {key}", "name a model and its method, or say what to assert")
            if "message" in found:
                self._report((*key_path, "message"), "only a step that asserts has a message", None)
        for_each = found.get("for_each")
        if "for_each" in found and not isinstance(for_each, list | dict) and not _has_expression(for_each):
            self._report(
                (*key_path, "for_each"), "for_each must be a list, a mapping, or an expression that is one", None
            )
        return Step(
            name=self._name(key_path, "step"),
            job=job,
            key_path=key_path,
            model=self._text(key_path, "model", "") or None,
            method=self._text(key_path, "method", "") or None,
            inputs=self._mapping(key_path, "inputs"),
            asserts=asserts,
            message=self._text(key_path, "message", "") or None,
            depends_on=self._edges(key_path, "step"),
            for_each=for_each,
            guard=self._guard(key_path),
            allow_failure=self._boolean(key_path, "allow_failure"),
            concurrency=self._concurrency(key_path),
            retries=self._retries(key_path),
            retry_delay_s=self._duration(key_path, "retry_delay", MAX_DELAY_S) or 0.0,
            timeout_s=self._duration(key_path, "timeout", MAX_TIMEOUT_S),
        )

    def _retries(self, key_path: KeyPath) -> int:
        found = self._at(key_path)
        value: object = found.get("retries", 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_RETRIES:
            message = f"retries must be a whole number from 0 to {MAX_RETRIES}, and not {value}"
            self._report((*key_path, "retries"), message, "how often a method that failed is run again")
            return 0
        if "retry_delay" in found and not value:
            self._report((*key_path, "retry_delay"), "retry_delay does nothing without retries", "add retries: 3")
        return value

    def _duration(self, key_path: KeyPath, key: str, most_s: float) -> float | None:
        """Return seconds: a number, or a text with a unit."""
        if key not in self._at(key_path):
            return None
        value = self._at(key_path)[key]
        seconds = parse_duration(value) if isinstance(value, str) else value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= most_s:
            hint = f"seconds, or a number with s, m, h or d, at most {most_s / 3600:g}h, like 30s or 5m"
            self._report((*key_path, key), f"{key} is no duration: {value}", hint)
            return None
        return float(seconds)

    def _asserts(self, key_path: KeyPath) -> tuple[str, ...]:
        value = self._at(key_path).get("assert")
        if value is None:
            if "assert" in self._at(key_path):
                self._report((*key_path, "assert"), "assert must be an expression, or a list of them", None)
            return ()
        found = value if isinstance(value, list) else [value]
        for at, expression in enumerate(found):
            if not _has_expression(expression):
                where = (*key_path, "assert", at) if isinstance(value, list) else (*key_path, "assert")
                self._report(where, "assert must be an expression", "like ${{ inputs.count > 0 }}")
        return tuple(map(str, found))

    def _edges(self, key_path: KeyPath, kind: str) -> tuple[Edge, ...]:
        value = self._at(key_path).get("depends_on")
        if value is None:
            return ()
        if not isinstance(value, list):
            self._report((*key_path, "depends_on"), "depends_on must be a list", f"like [{value}]")
            return ()
        edges = []
        for at, entry in enumerate(value):
            where: KeyPath = (*key_path, "depends_on", at)
            if isinstance(entry, str):
                edges.append(Edge(entry, "succeeded", where))
                continue
            if not isinstance(entry, dict) or not isinstance(entry.get(kind), str):
                self._report(where, f"not the name of a {kind}", f"like {{{kind}: name, when: failed}}")
                continue
            self._check_keys(where, (kind, "when"))
            when = entry.get("when", "succeeded")
            if when not in WHEN:
                self._report((*where, "when"), f"when is {when}", f"it is one of {', '.join(WHEN)}")
                when = "succeeded"
            edges.append(Edge(entry[kind], when, where))
        return tuple(edges)

    def _inputs(self) -> dict[str, dict[str, Any]]:
        found = self._mapping((), "inputs")
        for name, schema in found.items():
            if not isinstance(schema, dict):
                self._report(("inputs", name), f"{name} is no schema", "like {type: string, default: localhost}")
            if not name.isidentifier():
                self._report(("inputs", name), f"an input cannot be called {name}", "letters, digits and _")
        return {name: schema for name, schema in found.items() if isinstance(schema, dict)}

    def _tags(self) -> dict[str, str]:
        found = self._mapping((), "tags")
        for key, value in found.items():
            if not isinstance(value, str):
                self._report(("tags", key), "tags must be texts", 'put it in quotes, as cost: "12"')
        return {key: value for key, value in found.items() if isinstance(value, str)}

    def _name(self, key_path: KeyPath, kind: str) -> str:
        if "name" not in self._at(key_path):
            self._report(key_path, f"a {kind} has a name", None)
            return f"{kind} {key_path[-1]}"
        name = self._text(key_path, "name", f"{kind} {key_path[-1]}")
        if any(sign in name for sign in "[]/") or name != name.strip() or not name.isprintable():
            self._report((*key_path, "name"), f"a {kind} cannot be called {name!r}", "leave out brackets and slashes")
        return name

    def _guard(self, key_path: KeyPath) -> str | bool | None:
        value = self._at(key_path).get("guard")
        if value is None or isinstance(value, bool) or (isinstance(value, str) and _has_expression(value)):
            return value
        self._report((*key_path, "guard"), "guard must be an expression, true or false", "like ${{ inputs.deploy }}")
        return None

    def _concurrency(self, key_path: KeyPath) -> int | None:
        value = self._at(key_path).get("concurrency")
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            return value
        self._report((*key_path, "concurrency"), f"concurrency must be a number from 1, and not {value}", None)
        return None

    def _boolean(self, key_path: KeyPath, key: str) -> bool:
        value = self._at(key_path).get(key, False)
        if not isinstance(value, bool):
            self._report((*key_path, key), f"{key} must be true or false", None)
            return False
        return value

    def _text(self, key_path: KeyPath, key: str, default: str) -> str:
        value = self._at(key_path).get(key)
        if key in self._at(key_path) and (not isinstance(value, str) or not value):
            self._report((*key_path, key), f"{key} must be a text", "put it in quotes")
        return value if isinstance(value, str) and value else default

    def _mapping(self, key_path: KeyPath, key: str) -> dict[str, Any]:
        value = self._at(key_path).get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._report((*key_path, key), f"{key} must be a mapping of names to values", None)
            return {}
        return value

    def _each(self, key_path: KeyPath, key: str, read: Callable[[KeyPath], T]) -> list[T]:
        value = self._at(key_path).get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not value:
            self._report((*key_path, key), f"{key} must be a list, with something in it", None)
            return []
        places: list[KeyPath] = [(*key_path, key, at) for at in range(len(value))]
        good = []
        for element in places:
            if isinstance(self._at(element), dict):
                good.append(read(element))
            else:
                self._report(element, f"each of {key} is a mapping of keys to values", None)
        return good

    def _check_unique(self, found: Iterable[Job | Step], kind: str) -> None:
        seen: set[str] = set()
        for node in found:
            if node.name in seen:
                self._report((*node.key_path, "name"), f"there are two of the {kind} {node.name}", "rename one of them")
            seen.add(node.name)

    def _check_keys(self, key_path: KeyPath, keys: Sequence[str]) -> None:
        for key in self._at(key_path):
            if key not in keys:
                self._report((*key_path, key), f"unknown key {key}", nearest_hint(key, keys, "known keys"))

    def _at(self, key_path: KeyPath) -> Any:
        found = self._source.value
        for key in key_path:
            found = found[key]
        return found

    def _report(self, key_path: KeyPath, message: str, hint: str | None) -> None:
        self.problems.append(WorkflowProblem(self._source.where(key_path), message, hint))


def _has_expression(value: object) -> bool:
    return isinstance(value, str) and "${{" in value


def _check_edges(source: Source, nodes: Sequence[Job | Step], kind: str) -> Iterator[WorkflowProblem]:
    names = {node.name for node in nodes}
    for node in nodes:
        for edge in node.depends_on:
            if edge.on not in names:
                known = nearest_hint(edge.on, sorted(names - {node.name}), f"{kind}s here")
                yield WorkflowProblem(
                    source.where(edge.key_path), f"{node.name} depends on a {kind} {edge.on}: none here", known
                )
    edges = {node.name: node.depends_on for node in nodes}
    reported: set[str] = set()
    for node in nodes:
        cycle = _cycle(node.name, edges)
        if cycle and not reported & set(cycle):
            reported |= set(cycle)
            where = next(edge for edge in node.depends_on if edge.on == cycle[1])
            yield WorkflowProblem(
                source.where(where.key_path),
                f"{kind}s wait for each other: {' → '.join(cycle)}",
                "take one of these dependencies out",
            )


def _cycle(name: str, edges: Mapping[str, Sequence[Edge]]) -> list[str] | None:
    """Return the shortest path from a node back to itself; None if there is none."""
    paths = [[name]]
    seen = {name}
    for path in paths:
        for edge in edges.get(path[-1], ()):
            if edge.on == name:
                return [*path, name]
            if edge.on not in seen:
                seen.add(edge.on)
                paths.append([*path, edge.on])
    return None
