"""The standard library's `dataclass`, with methods that are made when they are first called.

A dataclass has six methods compiled from text as its module loads. That is half a millisecond for each class, and was 60 of the
140 ms that loading a run's modules took; most classes of a run are never compared or shown, and half of them never made. Here a class
only gets its fields at once. Its `__init__` is compiled for the first object; what compares, hashes and shows is the same
code for all. A class behaves as the standard one does: tests/test_values.py holds each class of broker's beside it.

In: a class with annotations. Out: that class, or with `slots` one made anew. Type checkers see the standard decorator.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from reprlib import recursive_repr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass
    from typing import Any
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        eq: bool = True,
        slots: bool = False,
        kw_only: bool = False,
    ) -> Any:
        """Make a dataclass. The options are the standard ones of those names; there are no others."""

        def made(cls: type) -> type:
            fields_alone = dataclasses.dataclass(
                init=False, repr=False, eq=False, slots=slots, kw_only=kw_only
            )
            return _with_methods(fields_alone(cls), frozen=frozen, eq=eq)

        return made if cls is None else made(cls)


__all__ = ["dataclass"]

_MADE = object()  # stands for a default that is made for each object


def _with_methods(cls: type, *, frozen: bool, eq: bool) -> type:
    own: dict[str, Any] = {"__init__": _first_init(cls, frozen=frozen), "__repr__": _repr}
    if eq:
        values = _values(tuple(field.name for field in dataclasses.fields(cls) if field.compare))

        def equal(self: object, other: object) -> bool:
            return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

        def hashed(self: object) -> int:
            return hash(values(self))

        own |= {"__eq__": equal, "__hash__": hashed if frozen else None}
    if frozen:
        own |= {
            "__setattr__": _refuse_to_set,
            "__delattr__": _refuse_to_delete,
            "__getstate__": _state,
            "__setstate__": _restore,
        }
    for name, method in own.items():
        if name not in cls.__dict__:  # what the class says itself stays
            setattr(cls, name, method)
    return cls


def _values(names: tuple[str, ...]) -> Callable[[object], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple(getattr(one, name) for name in names)


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (
        f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr
    )
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse_to_set(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def _first_init(cls: type, *, frozen: bool) -> Callable[..., None]:
    def first(self: object, *given: object, **named: object) -> None:
        init = _init(cls, frozen=frozen)
        cls.__init__ = init  # type: ignore[misc]
        init(self, *given, **named)

    return first


def _init(cls: type, *, frozen: bool) -> Callable[..., None]:
    """Compile what sets the fields. Of names and defaults alone: annotations are not looked at."""
    known: dict[str, Any] = {"_MADE": _MADE, "_set": object.__setattr__}
    first: list[str] = ["self"]
    named: list[str] = []
    body: list[str] = []
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        parameter = name
        if field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_MADE"
            value = f"_make_{name}() if {name} is _MADE else {name}"
        (named if field.kw_only else first).append(parameter)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    words = ", ".join([*first, "*", *named] if named else first)
    lines = "\n    ".join(body or ["pass"])
    exec(f"def __init__({words}):\n    {lines}", known)  # noqa: S102 - as the standard one does it
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init
