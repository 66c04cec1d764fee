"""Checks fields of a response."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def of_type(kind: type[T]) -> Callable[[Any], T]:
    """A reader of values of exactly this type, which raises `TypeError` for others."""

    def checked(value: Any) -> T:
        if type(value) is not kind:
            raise TypeError
        return value

    return checked


def optional(value: Any, read: Callable[[Any], T]) -> T | None:
    """None, or what `read` makes of the value."""
    return None if value is None else read(value)
