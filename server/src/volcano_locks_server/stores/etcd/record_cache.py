"""The lock records that this node saw last: guesses, with which a batch saves itself the reading.

A guess is never an answer. Whoever steps on one compares its revision in the transaction that writes, or in one that
only compares; what is not there any more has revision 0, and so has what is not remembered. If etcd says that it
holds, the record was the truth from before the step until then: no two writes of a key have the same revision. But
those of a restored cluster may, so guesses end with the way to it (`breaks` of `members`): what is restored was down.

A wrong guess costs a transaction, so after one the next batches read first: twice as many after each that was wrong,
half as many after each that was right. Where several nodes serve the same locks by turns it hardly pays to guess, and
hardly ever is guessed.

At most RECORDS_MAX are kept, those that were of use last.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from ...rules.lease import LockRecord

RECORDS_MAX: Final = 16_384
READ_FIRST_MAX: Final = 256


class Seen(NamedTuple):
    """A record as it was at `mod_revision`; None at 0: it is not there."""

    record: LockRecord | None
    mod_revision: int


ABSENT: Final = Seen(None, 0)


class RecentRecords:
    """What was seen of each key in etcd, and whether it is worth guessing by it."""

    def __init__(self) -> None:
        self._seen: Final[OrderedDict[bytes, Seen]] = OrderedDict()
        self._read_first = 0
        self._read_first_next = 1

    def guesses(self, names: Iterable[bytes]) -> dict[bytes, Seen] | None:
        """What may be there now; None: read first."""
        if self._read_first:
            self._read_first -= 1
            return None
        seen = self._seen
        return {name: seen.get(name, ABSENT) for name in names}

    def told(self, *, is_right: bool) -> None:
        """Whether the guesses held, all of them."""
        if is_right:
            self._read_first_next = max(1, self._read_first_next // 2)
        else:
            self._read_first = self._read_first_next
            self._read_first_next = min(READ_FIRST_MAX, self._read_first_next * 2)

    def keep(self, name: bytes, seen: Seen) -> None:
        """This is what is there."""
        self._seen.pop(name, None)
        if seen.record is not None:
            self._seen[name] = seen
            if len(self._seen) > RECORDS_MAX:
                self._seen.popitem(last=False)

    def forget_all(self) -> None:
        """Begin anew, as where a cluster that does not answer may be another one when it does again."""
        self._seen.clear()
