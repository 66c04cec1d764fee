"""The decorator `exclusive`: each call of the function runs under a lock (SDK-16).

The key is a template with names of the function's arguments, `"report-{day}"`, filled as `str.format` does it.

Not promised: that different arguments give different keys; with `"{a}-{b}"` two pairs may give the same one.
"""

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from math import inf
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_args

from volcano_locks.errors import LockHeldError

if TYPE_CHECKING:
    from volcano_locks.asyncio.block import AsyncLockBlock
    from volcano_locks.sync.block import LockBlock

GUARD = "guard"

OnHeld = Literal["raise", "skip", "wait"]

_OTHER_KINDS = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)

P = ParamSpec("P")
R = TypeVar("R")


class GuardedFunction:
    """One decorated function: the key of each call, and whether it takes the guard."""

    def __init__(self, key: str, on_held: str, function: Callable[..., Any]) -> None:
        if on_held not in get_args(OnHeld):
            raise ValueError(f"on_held must be raise, skip or wait, got {on_held!r:.100}")
        self.skips = on_held == "skip"
        self.wait = inf if on_held == "wait" else None
        self._key = key
        self._signature = inspect.signature(function)
        names = {name for name in map(_argument_name, Formatter().parse(key)) if name is not None}
        unknown = sorted(names - set(self._signature.parameters) | names & {GUARD})
        if unknown:
            named = ", ".join(f"{{{name}}}" for name in unknown)
            raise ValueError(f"key {key!r} has {named}, which is no argument of {function.__qualname__}")

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The key for a call with these arguments; `TypeError` if an argument is missing."""
        if "{" not in self._key and "}" not in self._key:
            return self._key
        bound = self._signature.bind_partial(*args, **kwargs)
        bound.apply_defaults()
        try:
            return self._key.format_map(bound.arguments)
        except KeyError as error:
            raise TypeError(f"missing an argument: {error}") from None

    def with_guard(self, guard: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments, with the guard if the function takes one and the caller passed none."""
        wants_guard = (
            GUARD in self._signature.parameters and GUARD not in self._signature.bind_partial(*args, **kwargs).arguments
        )
        return {**kwargs, GUARD: guard} if wants_guard else kwargs


def threaded(
    key: str, on_held: str, block: "Callable[[str, float | None], LockBlock]"
) -> "Callable[[Callable[P, Any]], Callable[P, Any]]":
    """The decorator for threads."""

    def decorated(function: Callable[P, R]) -> Callable[P, R | None]:
        guarded = GuardedFunction(key, on_held, function)
        if any(is_other(function) for is_other in _OTHER_KINDS):
            message = f"{function.__qualname__} must be a plain function; an AsyncClient decorates asynchronous ones"
            raise TypeError(message)

        @wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R | None:
            entered = False
            try:
                with block(guarded.key(args, kwargs), guarded.wait) as guard:
                    entered = True
                    return function(*args, **guarded.with_guard(guard, args, kwargs))
            except LockHeldError:
                if entered or not guarded.skips:
                    raise
            return None

        return locked

    return decorated


def asynchronous(
    key: str, on_held: str, block: "Callable[[str, float | None], AsyncLockBlock]"
) -> "Callable[[Callable[P, Any]], Callable[P, Any]]":
    """The decorator for asyncio."""

    def decorated(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R | None]]:
        guarded = GuardedFunction(key, on_held, function)
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} must be an `async def` function; a Client decorates plain ones")

        @wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R | None:
            entered = False
            try:
                async with block(guarded.key(args, kwargs), guarded.wait) as guard:
                    entered = True
                    return await function(*args, **guarded.with_guard(guard, args, kwargs))
            except LockHeldError:
                if entered or not guarded.skips:
                    raise
            return None

        return locked

    return decorated


def _argument_name(part: tuple[str, str | None, str | None, str | None]) -> str | None:
    """The argument's name in `{order.id}`; None for plain text."""
    name = part[1]
    return None if name is None else name.split(".")[0].split("[")[0]
