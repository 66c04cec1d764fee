"""`LockView`, every public field of a lock, and the operations that read one or list many (SDK-15). Owner tokens are
never included.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast, get_args
from urllib.parse import quote

from volcano_locks.protocol.arguments import checked_fencing_token, checked_key, new_uuid, parse_date
from volcano_locks.protocol.effects import Emit, Operation, Request, TimeBudget, lock_path
from volcano_locks.protocol.fields import of_type, optional
from volcano_locks.protocol.messages import Response, malformed_response, parse_body
from volcano_locks.protocol.operations import ATTEMPTS_MAX, expect_status, with_retries

PAGE_ROWS = 100

StateFilter = Literal["held", "free", "all"]


@dataclass(frozen=True, slots=True)
class LockView:
    """One lock. `held` is False if an acquire would succeed now.

    `holder` is a label for people. `ttl_seconds` was requested at `renewed_at`. `waiters` is the number of queued
    acquires. If the lock is free, the fields of a lease are None and `fencing_token` is the last one. `queue` has the
    holder labels of the first waiters on the server's node, the next one first; only `view` fills it.
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
    queue: tuple[str | None, ...] = ()


Page = tuple[list[LockView], str | None]
"""Part of a list, and the cursor of the next page."""


def view(key: str, request_id: str, budget: TimeBudget) -> Operation[LockView]:
    """Read one lock. A lock that was never used is free."""

    def attempt_once() -> Operation[LockView]:
        request = Request("GET", f"{lock_path(key)}?view=full", request_id, budget.remaining())
        response = expect_status(request, (yield request), 200)
        return _parse_view(parse_body(response, request_id), response, request_id)

    return (yield from with_retries(attempt_once, budget, ATTEMPTS_MAX))


def list_all(prefix: str, state: StateFilter, budget: TimeBudget) -> Operation[None]:
    """Emit the rows of all pages; request each page when it is needed."""
    cursor: str | None = None
    while True:
        views, cursor = yield from _page(prefix, state, cursor, budget)
        for row in views:
            yield Emit(row)
        if cursor is None:
            return


def _page(prefix: str, state: StateFilter, cursor: str | None, budget: TimeBudget) -> Operation[Page]:
    """Read the page at `cursor`, None for the first; return its rows and the cursor of the next page."""
    cursor_parameter = "" if cursor is None else f"&cursor={quote(cursor, safe='')}"
    path = f"/locks?prefix={quote(prefix, safe='')}&state={state}&limit={PAGE_ROWS}{cursor_parameter}"
    request_id = new_uuid()

    def attempt_once() -> Operation[Page]:
        request = Request("GET", path, request_id, budget.remaining())
        response = expect_status(request, (yield request), 200)
        body = parse_body(response, request_id)
        rows, next_cursor = body.get("items"), body.get("next_cursor")
        if not isinstance(rows, list) or not isinstance(next_cursor, str | None):
            raise malformed_response(response, "it is not a page of locks", request_id)
        return [_parse_view(row, response, request_id) for row in rows], next_cursor

    return (yield from with_retries(attempt_once, budget, ATTEMPTS_MAX))


def checked_prefix(prefix: object) -> str:
    """Return `prefix` if keys may begin with it; raise `TypeError` or `ValueError` otherwise."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str, got {type(prefix).__name__}")
    try:
        return prefix and checked_key(prefix)
    except ValueError as error:
        raise ValueError(f"prefix must be empty or the beginning of a key: {error}") from None


def checked_state(state: object) -> StateFilter:
    """Return `state` if it is a valid filter; raise `ValueError` otherwise."""
    if state not in get_args(StateFilter):
        raise ValueError(f"state must be held, free or all, got {state!r:.100}")
    return cast("StateFilter", state)


def _parse_view(row: Any, response: Response, request_id: str) -> LockView:
    try:
        return LockView(
            key=of_type(str)(row["key"]),
            held=of_type(bool)(row["held"]),
            holder=optional(row["holder"], of_type(str)),
            acquired_at=optional(row["acquired_at"], parse_date),
            renewed_at=optional(row["renewed_at"], parse_date),
            expires_at=optional(row["expires_at"], parse_date),
            ttl_seconds=optional(row["ttl_seconds"], of_type(int)),
            fencing_token=optional(row["fencing_token"], checked_fencing_token),
            waiters=of_type(int)(row["waiters"]),
            queue=tuple(optional(one["holder"], of_type(str)) for one in row.get("queue", ())),
        )
    except (KeyError, TypeError, ValueError):
        raise malformed_response(response, "a field of a lock is missing or malformed", request_id) from None
