"""Logs when the file of a store is replaced or its checkpoints fail, and when that is over (OPS-9, OPS-11)."""

from typing import Final

from ..ports.store_file import StoreFile
from ..rules.errors import STOPPING, StoreUnavailableError
from ..telemetry import Log

WATCH_FILE_SECONDS: Final = 1.0


class FileWatch:
    """Call `check` every WATCH_FILE_SECONDS. It logs changes only."""

    def __init__(self, file: StoreFile, log: Log) -> None:
        self._file: Final = file
        self._log: Final = log
        self._cause: str | None = None

    async def check(self) -> None:
        before, self._cause = self._cause, None
        try:
            await self._file.check()
        except StoreUnavailableError as error:
            self._cause = error.cause_code
            if self._cause not in (before, STOPPING[0]):
                self._log.warning("store_file_fault", cause=self._cause, message=error.message)
        else:
            if before is not None:
                self._log.info("store_file_recovered", cause=before)
