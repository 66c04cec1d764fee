"""`HoldEntry`, one entry of the history, and the operation that reads many (SDK-28).

Owner tokens are never included.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast
from urllib.parse import quote

from volcano_locks.protocol.arguments import checked_fencing_token, new_uuid, parse_date
from volcano_locks.protocol.effects import Emit, Operation, Request, TimeBudget, lock_path
from volcano_locks.protocol.fields import of_type, optional
from volcano_locks.protocol.messages import Response, malformed_response, parse_body
from volcano_locks.protocol.operations import ATTEMPTS_MAX, expect_status, with_retries

PAGE_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class HoldEntry:
    """One hold of a lock, from its acquire to its end.

    `key_name`, `address` and `client` say who acquired it. `began` is `free`, `taken_over` or `waited`. `ended` is None
    while the hold lasts, then `released`, `expired` or `forced`; `ended_by` and `reason` are those of a force release.
    What is unknown or does not apply is None.
    """

    key: str
    fencing_token: int
    holder: str | None
    key_id: str | None
    key_name: str | None
    address: str | None
    client: str | None
    began: str | None
    waited_seconds: float | None
    began_at: datetime
    renewals: int | None
    renewed_at: datetime | None
    ended: str | None
    ended_by: str | None
    reason: str | None
    ended_at: datetime | None
    expires_at: datetime
    held_seconds: float


Page = tuple[list[HoldEntry], str | None]
"""Part of the history, and the cursor of the next page."""
Bound = Literal["at", "since", "before"]
_PARAMETERS: dict[Bound, str] = {"at": "at", "since": "from", "before": "to"}


def read_all(key: str | None, prefix: str, period: dict[Bound, datetime], budget: TimeBudget) -> Operation[None]:
    """Emit the entries of all pages; request each page when it is needed. `key` None: of all locks with `prefix`."""
    path = f"/history?prefix={quote(prefix, safe='')}&" if key is None else f"{lock_path(key)}/history?"
    path += "".join(f"{_PARAMETERS[bound]}={quote(_date(instant), safe='')}&" for bound, instant in period.items())
    cursor: str | None = None
    while True:
        entries, cursor = yield from _page(path, cursor, budget)
        for entry in entries:
            yield Emit(entry)
        if cursor is None:
            return


def checked_instant(name: str, instant: object) -> datetime:
    """Return `instant` if it has a time zone; raise `TypeError` or `ValueError` otherwise."""
    if not isinstance(instant, datetime):
        raise TypeError(f"{name} must be a datetime, got {type(instant).__name__}")
    if instant.tzinfo is None:
        raise ValueError(f"{name} must have a time zone, got {instant.isoformat()}")
    return instant


def _page(path: str, cursor: str | None, budget: TimeBudget) -> Operation[Page]:
    cursor_parameter = "" if cursor is None else f"&cursor={quote(cursor, safe='')}"
    path = f"{path}limit={PAGE_ENTRIES}{cursor_parameter}"
    request_id = new_uuid()

    def attempt_once() -> Operation[Page]:
        request = Request("GET", path, request_id, budget.remaining())
        response = expect_status(request, (yield request), 200)
        body = parse_body(response, request_id)
        rows, next_cursor = body.get("items"), body.get("next_cursor")
        if not isinstance(rows, list) or not isinstance(next_cursor, str | None):
            raise malformed_response(response, "it is not a page of the history", request_id)
        return [_parse_entry(row, response, request_id) for row in rows], next_cursor

    return (yield from with_retries(attempt_once, budget, ATTEMPTS_MAX))


def _date(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _parse_entry(row: Any, response: Response, request_id: str) -> HoldEntry:
    texts = ("holder", "key_id", "key_name", "address", "client", "began", "ended", "ended_by", "reason")
    try:
        return HoldEntry(
            key=of_type(str)(row["key"]),
            fencing_token=checked_fencing_token(row["fencing_token"]),
            waited_seconds=optional(row["waited_seconds"], _seconds),
            began_at=parse_date(row["began_at"]),
            renewals=optional(row["renewals"], of_type(int)),
            renewed_at=optional(row["renewed_at"], parse_date),
            ended_at=optional(row["ended_at"], parse_date),
            expires_at=parse_date(row["expires_at"]),
            held_seconds=_seconds(row["held_seconds"]),
            **cast("Any", {name: optional(row[name], of_type(str)) for name in texts}),
        )
    except (KeyError, TypeError, ValueError):
        raise malformed_response(response, "a field of a hold is missing or malformed", request_id) from None


def _seconds(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError
    return float(value)
