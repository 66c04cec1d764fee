"""The port of a store that is a file on this machine: what its operator has to know about the file and its log."""

from typing import Protocol


class StoreFile(Protocol):
    """An open file with a write-ahead log (OPS-9, OPS-11)."""

    @property
    def log_bytes(self) -> int:
        """The size of the log."""
        ...

    @property
    def checkpoint_failures(self) -> int:
        """Checkpoints that failed since the file was opened."""
        ...

    async def check(self) -> None:
        """Raise StoreUnavailableError if another program replaced the file, or the latest checkpoint failed."""
        ...
