"""Broker's dataclasses beside the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import broker
from broker import values
from broker.enforce.engine import Bind

FOLDERS = ("classify", "decide", "enforce", "profiles", "record", "request", "serve", "task")


def twins(decorate: Any) -> tuple[type, type, type]:
    """The same three classes, by either decorator."""

    @decorate(frozen=True, slots=True, kw_only=True)
    class Value:
        name: str
        size: int = 3
        parts: tuple[str, ...] = ()
        table: dict[str, int] = dataclasses.field(default_factory=dict, compare=False)
        hidden: str = dataclasses.field(default="x", repr=False)

    @decorate(slots=True)
    class Counter:
        """It changes."""

        first: int
        second: list[int] = dataclasses.field(default_factory=list)
        third: Any = None

        def double(self) -> int:
            return self.first * 2

    @decorate(frozen=True)
    class Shown:
        only: str = ""

        def __repr__(self) -> str:
            return f"<{self.only}>"

    return Value, Counter, Shown


OURS, THEIRS = twins(values.dataclass), twins(dataclasses.dataclass)
EACH = pytest.mark.parametrize(
    ("ours", "theirs"), list(zip(OURS, THEIRS, strict=True)), ids=lambda cls: cls.__name__
)
GIVEN: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((), {}), ((), {"name": "a"}), ((), {"name": "a", "size": 4, "parts": ("b",), "table": {"c": 1}}), ((1,), {}), ((1, [2], 3), {}),
    ((1, [2], 3, 4), {}), ((), {"only": "y"}), (("z",), {}), ((), {"other": 1}),
)  # fmt: skip


def made(cls: type) -> list[Any]:
    """What comes of each way to make one."""
    found = []
    for given, named in GIVEN:
        try:
            found.append(cls(*given, **named))
        except TypeError as error:
            found.append(str(error))
    return found


@EACH
def test_both_make_and_show_the_same_and_refuse_the_same(ours: type, theirs: type) -> None:
    assert list(map(repr, made(ours))) == list(map(repr, made(theirs)))
    assert any(not isinstance(one, str) for one in made(ours))


@EACH
def test_both_compare_and_hash_the_same(ours: type, theirs: type) -> None:
    mine, standard = [[one for one in made(cls) if not isinstance(one, str)] for cls in (ours, theirs)]
    again = [one for one in made(ours) if not isinstance(one, str)]
    assert [[a == b for b in again] for a in mine] == [[a == b for b in standard] for a in standard]
    assert all(a != b for a in mine for b in standard)
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)
    if ours.__hash__ is not None:
        assert [hash(a) == hash(b) for a in mine for b in again] == [
            hash(a) == hash(b) for a in standard for b in standard
        ]


@EACH
def test_both_can_be_replaced_taken_apart_and_matched(ours: type, theirs: type) -> None:
    mine, standard = [next(one for one in made(cls) if not isinstance(one, str)) for cls in (ours, theirs)]
    assert dataclasses.asdict(mine) == dataclasses.asdict(standard)
    name = dataclasses.fields(mine)[0].name
    assert repr(dataclasses.replace(mine, **{name: "new"})) == repr(
        dataclasses.replace(standard, **{name: "new"})
    )
    assert ours.__match_args__ == theirs.__match_args__  # type: ignore[attr-defined]
    assert hasattr(mine, "__dict__") == hasattr(standard, "__dict__")


def test_both_can_be_copied_and_pickled() -> None:
    bind = Bind(source="/a", target="/b")
    for again in (copy.copy(bind), copy.deepcopy(bind), pickle.loads(pickle.dumps(bind))):
        assert again == bind
        assert again is not bind
    counter = OURS[1](1, [2])
    assert copy.deepcopy(counter) == counter


def test_what_is_frozen_stays_as_it_is_and_the_rest_changes() -> None:
    value, counter = OURS[0](name="a"), OURS[1](1)
    for name in ("name", "unheard_of"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, "b")
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.name
    counter.first = 5
    assert counter.double() == 10
    assert value.name == "a"


def test_an_object_that_holds_itself_can_be_shown() -> None:
    counter = OURS[1](1)
    counter.third = counter
    assert repr(counter).endswith("third=...)")


def test_a_default_that_is_made_is_made_for_each() -> None:
    one, other = OURS[1](1), OURS[1](1)
    one.second.append(7)
    assert other.second == []


def of_broker() -> Iterator[type]:
    """Yield the classes of broker's own that are made this way."""
    for folder in FOLDERS:
        for module in pkgutil.walk_packages([f"{broker.__path__[0]}/{folder}"], f"broker.{folder}."):
            if module.name.startswith(("broker.serve.mcp", "broker.record.export.")):
                continue  # what they need is an extra
            for cls in vars(importlib.import_module(module.name)).values():
                if (
                    isinstance(cls, type)
                    and cls.__module__ == module.name
                    and "__dataclass_fields__" in vars(cls)
                    and _is_ours(cls)
                ):
                    yield cls


def _is_ours(cls: type) -> bool:
    return values.__name__ in {getattr(method, "__module__", "") for method in vars(cls).values()}


def test_each_class_of_brokers_is_made_from_what_the_standard_one_would_be() -> None:
    seen = 0
    for cls in of_broker():
        fields = [
            (field.name, Any, dataclasses.field(default=field.default, kw_only=field.kw_only))
            if field.default_factory is dataclasses.MISSING
            else (
                field.name,
                Any,
                dataclasses.field(default_factory=field.default_factory, kw_only=field.kw_only),
            )
            for field in dataclasses.fields(cls)
        ]
        standard = inspect.signature(dataclasses.make_dataclass("Standard", fields))
        ours = inspect.signature(values._init(cls, frozen=True))
        assert [
            (one.name, one.kind, one.default is one.empty) for one in list(ours.parameters.values())[1:]
        ] == [(one.name, one.kind, one.default is one.empty) for one in standard.parameters.values()], cls
        assert not hasattr(cls, "__post_init__"), cls  # it would not be called
        assert all(field.init and field.hash is None for field in dataclasses.fields(cls)), cls
        seen += 1
    assert seen > 50
