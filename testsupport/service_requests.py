"""One request to a `LockService`, with the calls that the HTTP layer makes."""

from typing import NamedTuple

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.queue.wait_request import WaitRequest
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.rules.lease import Command, Outcome, Release, Renew
from volcano_locks_server.rules.quota import Admission
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.service.lock_service import LockService


class Reply(NamedTuple):
    outcome: Outcome | LockError
    admission: Admission


async def perform(
    service: LockService, project_id: str, limit: int, key: LockKey, command: Command, *, wait_ms: int = 0
) -> Reply:
    """Admit the request against a quota of `limit` a minute (0: none), and perform its command."""
    may_draw = isinstance(command, Renew | Release)
    admission = service.admit_now(project_id, limit, may_draw_on_reserve=may_draw)
    if admission is None:
        admission = await service.admit(project_id, limit, may_draw_on_reserve=may_draw)
    wait = WaitRequest(wait_ms) if wait_ms else None
    outcome = await service.perform(RecordKey(project_id, key), command, admission, wait=wait)
    assert outcome is not None
    return Reply(outcome, admission)
