"""Locks as people look at them: one row, and pages of rows (SDK-15). No owner token is among what they tell."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar, get_args
from urllib.parse import quote

from volcano_locks.protocol.effects import Flow, Pace, Request, lock_path
from volcano_locks.protocol.messages import (
    Answer,
    body_of,
    checked_key,
    fencing_token_of,
    malformed,
    new_uuid,
    parse_date,
)
from volcano_locks.protocol.operations import ATTEMPTS_MAX, expect, retried

PAGE_ROWS = 100

State = Literal["held", "free", "all"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LockView:
    """One lock. `held` is what a read says: False means that an acquire would succeed now.

    `holder` is a label for people. `ttl_seconds` is what was asked for last, at `renewed_at`. `waiters` is how many
    requests wait for it. Of a free lock all that belongs to a lease is None, and `fencing_token` is the last one.
    """

    key: str
    held: bool
    holder: str | None
    acquired_at: datetime | None
    renewed_at: datetime | None
    expires_at: datetime | None
    ttl_seconds: int | None
    fencing_token: int | None
    waiters: int


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the locks, and where the others begin."""

    views: tuple[LockView, ...]
    next_cursor: str | None


def view(key: str, request_id: str, pace: Pace) -> Flow[LockView]:
    """One lock; of one that nobody has used, that it is free."""

    def once() -> Flow[LockView]:
        request = Request("GET", f"{lock_path(key)}?view=full", request_id, pace.left())
        answer = expect(request, (yield request), 200)
        return _view_from(body_of(answer, request_id), answer, request_id)

    return (yield from retried(once, pace, ATTEMPTS_MAX))


def page(prefix: str, state: State, cursor: str | None, pace: Pace) -> Flow[Page]:
    """The page that begins at `cursor`; None is the first."""
    behind = "" if cursor is None else f"&cursor={quote(cursor, safe='')}"
    path = f"/locks?prefix={quote(prefix, safe='')}&state={state}&limit={PAGE_ROWS}{behind}"
    request_id = new_uuid()

    def once() -> Flow[Page]:
        request = Request("GET", path, request_id, pace.left())
        answer = expect(request, (yield request), 200)
        body = body_of(answer, request_id)
        rows, next_cursor = body.get("items"), body.get("next_cursor")
        if not isinstance(rows, list) or not isinstance(next_cursor, str | None):
            raise malformed(answer, "it is no page of locks", request_id)
        return Page(tuple(_view_from(row, answer, request_id) for row in rows), next_cursor)

    return (yield from retried(once, pace, ATTEMPTS_MAX))


def checked_prefix(prefix: object) -> str:
    """`prefix` if keys may begin so, else `TypeError` or `ValueError`."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str, got {type(prefix).__name__}")
    try:
        return prefix and checked_key(prefix)
    except ValueError as error:
        raise ValueError(f"prefix must be empty or the beginning of a key: {error}") from None


def checked_state(state: object) -> State:
    """`state` if there is such a one, else `ValueError`."""
    for known in get_args(State):
        if state == known:
            found: State = known
            return found
    raise ValueError(f"state must be held, free or all, got {state!r:.100}")


def _view_from(row: Any, answer: Answer, request_id: str) -> LockView:
    try:
        return LockView(
            key=_a(str)(row["key"]),
            held=_a(bool)(row["held"]),
            holder=_or_none(row["holder"], _a(str)),
            acquired_at=_or_none(row["acquired_at"], parse_date),
            renewed_at=_or_none(row["renewed_at"], parse_date),
            expires_at=_or_none(row["expires_at"], parse_date),
            ttl_seconds=_or_none(row["ttl_seconds"], _a(int)),
            fencing_token=_or_none(row["fencing_token"], fencing_token_of),
            waiters=_a(int)(row["waiters"]),
        )
    except (KeyError, TypeError, ValueError):
        raise malformed(answer, "what it says of a lock is not whole", request_id) from None


def _a(kind: type[T]) -> Callable[[Any], T]:
    def checked(value: Any) -> T:
        if type(value) is not kind:
            raise TypeError
        return value

    return checked


def _or_none(value: Any, read: Callable[[Any], T]) -> T | None:
    return None if value is None else read(value)
