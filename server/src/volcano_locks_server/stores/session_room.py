"""Which sessions make room for a new one, in every store. Pure: no I/O."""

from collections.abc import Iterable

from ..ports.session_store import SessionLimits, StoredSession


def entries_to_drop(
    stored: Iterable[StoredSession], new: StoredSession, limits: SessionLimits, now_ms: int
) -> list[bytes]:
    """The digests of entries to delete; `stored` are those of the same purpose, at most a little over `limits.in_all`.

    Those that have ended go, then the owner's that end first, then those of all that end first.
    """
    by_end = sorted(stored, key=lambda one: (one.good_until_ms, one.digest))
    ended = [one for one in by_end if one.good_until_ms <= now_ms]
    live = by_end[len(ended) :]
    own = [one for one in live if (one.owner_kind, one.owner_id) == (new.owner_kind, new.owner_id)]
    excess = own[: max(0, len(own) + 1 - limits.per_owner)]
    others = [one for one in live if one not in excess]
    excess += others[: max(0, len(others) + 1 - limits.in_all)]
    return [one.digest for one in (*ended, *excess)]
