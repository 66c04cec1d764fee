"""Backups over HTTP, for `volcano-locks backup` (KEEP-9): make one, download it in parts, delete it.

A backup is sent in parts, because responses of this server are small and complete. The server keeps one backup at a
time. It deletes a backup when a newer one is made, and KEPT_SECONDS after the last download. A backup holds the digests
of all secrets but no secret; these routes need the admin token.
"""

import asyncio
import uuid
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ..ports.audit import AuditLog
from ..ports.audit_entry import entry_of
from ..ports.clock import Clock
from ..ports.snapshot import BackupFile, Backups
from ..rules.errors import LockError
from ..rules.values import shown
from ..telemetry import Log
from .acts import act_of
from .audit_log import made_by
from .codec import json_object, read_body
from .responses import json_response

PART_BYTES: Final = 1024 * 1024
KEPT_SECONDS: Final = 600.0
_OFFSET_DIGITS_MAX: Final = 15


class BackupRoutes:
    """The endpoints under `/backups`. `backups` is None for a store that is backed up by other means."""

    def __init__(self, backups: Backups | None, audit: AuditLog, clock: Clock, log: Log) -> None:
        self._backups: Final = backups
        self._audit: Final = audit
        self._clock: Final = clock
        self._log: Final = log
        self._id = ""
        self._file: BackupFile | None = None
        self._expiry: asyncio.TimerHandle | None = None

    async def create(self, request: Request) -> Response:
        json_object(await read_body(request.receive), (), empty_is_object=True)
        if self._backups is None:
            raise LockError("not_found", "this server's store is not one file: back it up with its engine's own tools")
        made = await self._backups.take()
        try:
            facts = {"size_bytes": made.size_bytes}
            act = act_of(request.scope, self._clock.now_ms())
            await self._audit.append(entry_of(act, "backup_taken", ("store", None, None), after=facts))
        except BaseException:
            made.close()
            raise
        self.discard()
        self._id, self._file = str(uuid.uuid4()), made
        self._keep()
        self._log.info("backup_taken", **made_by(request.scope), size_bytes=made.size_bytes)
        return json_response({"id": self._id, "size_bytes": made.size_bytes, "part_bytes": PART_BYTES}, 201)

    async def part(self, request: Request) -> Response:
        """Up to PART_BYTES bytes from `offset` on."""
        file = self._known(request)
        asked = request.query_params.get("offset", "0")
        if not (asked.isascii() and asked.isdigit() and len(asked) <= _OFFSET_DIGITS_MAX):
            raise LockError("invalid_request", f"offset must be a whole number of bytes; got {shown(asked)}")
        if int(asked) >= file.size_bytes:
            raise LockError(
                "invalid_request", f"offset must be below the backup's {file.size_bytes} bytes; got {asked}"
            )
        self._keep()
        return Response(file.read(int(asked), PART_BYTES), media_type="application/octet-stream")

    async def delete(self, request: Request) -> Response:
        self._known(request)
        self.discard()
        return Response(status_code=204)

    def discard(self) -> None:
        """Delete the kept backup, if any."""
        if self._expiry is not None:
            self._expiry.cancel()
        if self._file is not None:
            self._file.close()
        self._id, self._file, self._expiry = "", None, None

    def _known(self, request: Request) -> BackupFile:
        if self._file is None or request.path_params["backup_id"] != self._id:
            raise LockError("not_found", "there is no backup with this id, or no longer: make a new one")
        return self._file

    def _keep(self) -> None:
        """Keep the backup for KEPT_SECONDS from now."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(KEPT_SECONDS, self.discard)
