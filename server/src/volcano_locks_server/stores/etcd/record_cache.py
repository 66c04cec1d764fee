"""Caches the lock records that this node last saw, so that a batch need not read them first.

A cached record is only a guess. Before the transaction takes effect, it compares the record's revision; a record that
does not exist, or is not cached, has revision 0. If the comparison holds, no write happened since the record was
cached, because no two writes of a key have the same revision. A restored cluster may reuse revisions, so the cache is
cleared whenever the connection changes (`Endpoints.connection_changes`).

A wrong guess costs one transaction. After a wrong guess the next batches read first instead: twice as many after each
wrong guess, half as many after each right one. So nodes that take turns on the same locks seldom guess.

The cache holds at most RECORDS_MAX records and evicts the least recently stored.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from ...rules.lease import StoredRecord

RECORDS_MAX: Final = 16_384
READ_FIRST_MAX: Final = 256


class VersionedRecord(NamedTuple):
    """A record at `mod_revision`; None at revision 0: it does not exist."""

    record: StoredRecord | None
    mod_revision: int


ABSENT: Final = VersionedRecord(None, 0)


class RecordCache:
    """The latest known record of each etcd key, and whether guessing by it is worthwhile."""

    def __init__(self) -> None:
        self._records: Final[OrderedDict[bytes, VersionedRecord]] = OrderedDict()
        self._read_first = 0
        self._read_first_next = 1

    def guesses(self, names: Iterable[bytes]) -> dict[bytes, VersionedRecord] | None:
        """The cached records of `names`; None if the batch should read first."""
        if self._read_first:
            self._read_first -= 1
            return None
        records = self._records
        return {name: records.get(name, ABSENT) for name in names}

    def note_guess(self, *, was_right: bool) -> None:
        """Note whether all guesses of a batch were right."""
        if was_right:
            self._read_first_next = max(1, self._read_first_next // 2)
        else:
            self._read_first = self._read_first_next
            self._read_first_next = min(READ_FIRST_MAX, self._read_first_next * 2)

    def put(self, name: bytes, versioned: VersionedRecord) -> None:
        """Cache the current record of `name`."""
        self._records.pop(name, None)
        if versioned.record is not None:
            self._records[name] = versioned
            if len(self._records) > RECORDS_MAX:
                self._records.popitem(last=False)

    def clear(self) -> None:
        """Forget all records, because a cluster that failed to respond may have been replaced."""
        self._records.clear()
