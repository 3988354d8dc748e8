"""`bayou.quick.dataclass` does what `dataclasses.dataclass` does."""

# ruff: noqa: N806  (classes are called as classes are, also where they are arguments)

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from bayou import quick

Make = Callable[..., Any]


def example(dataclass: Make) -> dict[str, Any]:
    @dataclass(frozen=True, slots=True)
    class Point:
        """Where."""

        x: int
        y: int = 0
        unit: ClassVar[str] = "mm"
        tags: list[str] = dataclasses.field(default_factory=list, compare=False)
        note: str = dataclasses.field(default="", compare=False, repr=False)

        @property
        def far(self) -> bool:
            return self.x + self.y > 100

    @dataclass(frozen=True, slots=True)
    class Named(Point):
        name: str = "?"

        def __post_init__(self) -> None:
            if not self.name:
                raise ValueError("a name")

    @dataclass(slots=True)
    class Count:  # noqa: PLW1641  (a dataclass sees to that)
        files: int = 0
        seen: dict[str, int] = dataclasses.field(default_factory=dict)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Count) and self.files == other.files

    @dataclass(slots=True)
    class Tally:
        files: int = 0

    @dataclass(frozen=True, slots=True)
    class One:
        value: object

    @dataclass(frozen=True, slots=True)
    class Nothing:
        pass

    @dataclass(slots=True)
    class Odd:
        given: int
        made: int = dataclasses.field(init=False, default=7)

    @dataclass(frozen=True, slots=True, eq=False)
    class Identity:
        value: int

    @dataclass(frozen=True, slots=True)
    class Open:
        value: int
        extra: dict[str, int] = dataclasses.field(default_factory=dict, hash=False)
        aside: int = dataclasses.field(default=0, compare=False, hash=True)

    return {kind.__name__: kind for kind in (Point, Named, Count, Tally, One, Nothing, Odd, Identity, Open)}


def refused(action: Callable[[], object]) -> str:
    try:
        action()
    except (dataclasses.FrozenInstanceError, AttributeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def behaviour(kinds: dict[str, Any]) -> list[object]:
    """Everything that somebody may notice of these classes."""
    Point, Named, Count, Tally = (kinds[name] for name in ("Point", "Named", "Count", "Tally"))
    One, Nothing, Odd, Identity = (kinds[name] for name in ("One", "Nothing", "Odd", "Identity"))
    Open = kinds["Open"]
    point, other = Point(1, tags=["a"]), Point(1, tags=["b"], note="n")
    changed = dataclasses.replace(point, y=200)
    match changed:
        case Point(x, y):
            matched = (x, y)
    return [
        repr(point), repr(Named(1, 2, name="n")), repr(Nothing()), repr(Count()), repr(Odd(3)),
        point == other, point != other, hash(point) == hash(other), point == Named(1), Named(1) == Named(1),
        point == (1, 0), One(1) == One(1), One((1,)) == One(1), hash(One(1)) == hash(One(1)), Nothing() == Nothing(),
        Count(1) == Count(1), Tally(1) == Tally(1), Tally(1) == Tally(2), Identity(1) == Identity(1),
        Count.__hash__ is None, Tally.__hash__ is None, Identity.__hash__ is object.__hash__,
        changed.far, changed.tags is point.tags, matched, Point(1).tags is not Point(1).tags, Point.unit,
        dataclasses.asdict(Named(1, 2, name="n")), [field.name for field in dataclasses.fields(Named)],
        list(inspect.signature(Named).parameters), Point.__doc__, Point.__slots__, Named.__slots__,
        Point.__match_args__, hasattr(point, "__dict__"), copy.copy(point) == point, copy.deepcopy(point).tags,
        refused(lambda: setattr(point, "x", 2)), refused(lambda: delattr(point, "x")),
        refused(lambda: Named(1, name="")),
        refused(lambda: setattr(Count(), "new", 2)),
        hash(Open(1, {"a": 1})) == hash(Open(1)), Open(1, {"a": 1}) == Open(1), Open(1, aside=1) == Open(1),
        hash(Open(1, aside=1)) == hash(Open(1)),
        refused(Point), refused(lambda: Point(1, 2, 3, 4, 5)), refused(lambda: Point(1, z=3)), Odd(3).made,
    ]  # fmt: skip


def test_it_behaves_as_the_one_of_the_standard_library() -> None:
    ours, theirs = behaviour(example(quick.dataclass)), behaviour(example(dataclasses.dataclass))
    assert ours == theirs
    assert "done" not in theirs
    with pytest.raises(dataclasses.FrozenInstanceError):  # there, a TypeError that nobody understands
        example(quick.dataclass)["Point"](1).new = 2


@pytest.mark.parametrize(("above", "below"), [(quick, dataclasses), (dataclasses, quick), (quick, quick)])
def test_each_may_inherit_from_the_other(above: Any, below: Any) -> None:
    @above.dataclass(frozen=True, slots=True)
    class Above:
        x: int

    @below.dataclass(frozen=True, slots=True)
    class Below(Above):
        y: int = 2

    assert repr(Below(1)) == f"{Below.__qualname__}(x=1, y=2)"
    assert Below(1) == Below(1, 2) != Above(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Below(1).x = 3
    with pytest.raises(TypeError, match="non-frozen"):

        @below.dataclass(slots=True)
        class _Open(Above):
            z: int = 3


@quick.dataclass(frozen=True, slots=True)
class Travels:
    path: str
    size: int = dataclasses.field(default=0, compare=False)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_it_can_go_to_another_process(protocol: int) -> None:
    came = pickle.loads(pickle.dumps(Travels("a", 3), protocol))
    assert (came, came.size) == (Travels("a", 3), 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        came.path = "b"


def test_a_frozen_class_that_would_set_is_refused() -> None:
    with pytest.raises(TypeError):

        @quick.dataclass(frozen=True, slots=True)
        class _Sets:
            x: int

            def __setattr__(self, name: str, value: object) -> None: ...
