"""The decorator `exclusive`: each call of the function runs under a lock (SDK-16).

The key is a template with names of the function's arguments, `"report-{day}"`, filled as `str.format` does it.

Limit: different arguments may give the same key. `"{a}-{b}"` is `x-y-z` for `x-y` and `z`, and for `x` and `y-z`.
"""

import inspect
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from math import inf
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_args

from volcano_locks.errors import LockHeldError

if TYPE_CHECKING:
    from volcano_locks.asyncio.block import AsyncLockBlock
    from volcano_locks.sync.block import LockBlock

GUARD = "guard"

OnHeld = Literal["raise", "skip", "wait"]

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
            raise ValueError(f"key {key!r} has {named}, which is no argument of {_name(function)}")

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
        checked_plain(function)
        guarded = GuardedFunction(key, on_held, function)

        @wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R | None:
            entered = False
            try:
                with block(guarded.key(args, kwargs), guarded.wait) as guard:
                    entered = True
                    return checked_result(function, function(*args, **guarded.with_guard(guard, args, kwargs)))
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
        checked_async(function)
        guarded = GuardedFunction(key, on_held, function)

        @wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R | None:
            entered = False
            try:
                async with block(guarded.key(args, kwargs), guarded.wait) as guard:
                    entered = True
                    result = await function(*args, **guarded.with_guard(guard, args, kwargs))
                    return checked_result(function, result)
            except LockHeldError:
                if entered or not guarded.skips:
                    raise
            return None

        return locked

    return decorated


def checked_plain(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` if its body runs while it is called; raise `TypeError` otherwise (case 44)."""
    if not callable(function) or _is_any(function, inspect.iscoroutinefunction, *_GENERATORS):
        raise TypeError(f"{_name(function)} must be a plain function: {_RUNS_LATER}; an AsyncClient guards `async def`")
    return function


def checked_async(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` if its body runs while it is awaited; raise `TypeError` otherwise (case 44)."""
    if not callable(function) or not _is_any(function, inspect.iscoroutinefunction) or _is_any(function, *_GENERATORS):
        raise TypeError(f"{_name(function)} must be an `async def` function: {_RUNS_LATER}; a Client guards plain ones")
    return function


def checked_result(function: object, result: R) -> R:
    """Return `result`, unless it is code that would run after the release: then raise `TypeError` (case 44)."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()
        raise TypeError(f"{_name(function)} returned a {type(result).__name__}: {_RUNS_LATER}")
    return result


_GENERATORS = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_RUNS_LATER = "the body of a generator or of an awaitable would run after the release"


def _is_any(function: Any, *kinds: Callable[[Any], bool]) -> bool:
    """Whether the function, or the `__call__` of an object, is of one of the kinds. Sees through `partial`."""
    while isinstance(function, partial):
        function = function.func
    return any(kind(function) or kind(function.__call__) for kind in kinds)


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)[:100]


def _argument_name(part: tuple[str, str | None, str | None, str | None]) -> str | None:
    """The argument's name in `{order.id}`; None for plain text."""
    name = part[1]
    return None if name is None else name.split(".")[0].split("[")[0]
