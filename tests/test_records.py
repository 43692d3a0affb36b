"""Our data classes are those of the standard library, but for when their methods are written."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field

import pytest

from multitap import records

OPTIONS = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"frozen": True, "slots": True, "kw_only": True},
]


def defined(decorator, options):
    @decorator(**options)
    class Point:
        x: int
        label: str = "p"
        tags: list[str] = field(default_factory=list)
        secret: str = field(default="hush", repr=False, compare=False)
        steps: int = field(default=0, init=False)
        marks: list[int] = field(default_factory=list, init=False)

    return Point


@pytest.fixture(params=OPTIONS, ids=str)
def pair(request):
    """The same class by us and by the standard library."""
    return (
        defined(records.dataclass, request.param),
        defined(dataclasses.dataclass, request.param),
    )


def outcome(make):
    try:
        return make()
    except (TypeError, AttributeError) as exc:
        return type(exc)


@pytest.mark.parametrize(
    "make",
    [
        lambda cls: dataclasses.asdict(cls(x=1, label="a")),
        lambda cls: outcome(lambda: dataclasses.asdict(cls(1, "a", ["t"], "s"))),
        outcome,
        lambda cls: outcome(lambda: cls(x=1, steps=2)),
        lambda cls: outcome(lambda: cls(x=1, y=2)),
        lambda cls: repr(cls(x=1)),
        lambda cls: cls(x=1) == cls(x=1),
        lambda cls: cls(x=1, secret="other") == cls(x=1),
        lambda cls: cls(x=1) == cls(x=2),
        lambda cls: cls(x=1) == 1,
        lambda cls: cls.__hash__ is None,
        lambda cls: outcome(lambda: setattr(cls(x=1), "x", 2)),
        lambda cls: outcome(lambda: delattr(cls(x=1), "x")),
        lambda cls: hasattr(cls(x=1), "__dict__"),
        lambda cls: cls.__match_args__,
        lambda cls: repr(dataclasses.replace(cls(x=1), x=3)),
        lambda cls: repr(copy.copy(cls(x=1, tags=["t"]))),
        lambda cls: repr(copy.deepcopy(cls(x=1, tags=["t"]))),
        lambda cls: cls(x=1).tags is cls(x=1).tags,
    ],
)
def test_a_class_behaves_as_one_of_the_standard_library(pair, make):
    ours, theirs = pair

    assert make(ours) == make(theirs)


@records.dataclass(frozen=True, slots=True)
class Own:  # noqa: PLW1641 - it gets a hash
    """It says some things itself."""

    value: str

    def __repr__(self):
        return "mine"

    def __eq__(self, other):
        return isinstance(other, Own)


def test_what_a_class_defines_itself_stays():
    assert repr(Own("a")) == "mine"
    assert Own("a") == Own("b")
    assert hash(Own("a")) == hash(Own("a"))


def test_values_can_be_pickled():
    assert pickle.loads(pickle.dumps(Own("a"))).value == "a"


def test_a_frozen_class_may_be_inherited_from():
    @dataclasses.dataclass(frozen=True, slots=True)
    class More(Own):
        other: int = 0

    assert (More("a", 1).value, More("a", 1).other) == ("a", 1)
    with pytest.raises(FrozenInstanceError):
        More("a").other = 2


def test_what_is_to_happen_after_init_happens():
    @records.dataclass()
    class Doubled:
        value: int

        def __post_init__(self):
            self.value *= 2

    assert Doubled(2).value == Doubled(value=2).value == 4


def test_a_value_that_holds_itself_can_be_shown():
    @records.dataclass(frozen=True, slots=True)
    class Knot:
        held: list

    knot = Knot([])
    knot.held.append(knot)

    assert repr(knot).endswith("Knot(held=[...])")
