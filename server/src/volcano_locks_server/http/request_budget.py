"""Budgets of requests in a minute beside the quota: sessions (UI-6), sign-ins (UI-4), reader requests (AUDIT-4)."""

from typing import Final

from ..rules.errors import LockError
from ..rules.quota import Admission, Verdict
from ..service.rate_limiter import LocalRateLimiter

READER_REQUESTS_PER_MINUTE: Final = 1_200


def count_request(limiter: LocalRateLimiter, who: str, limit: int, what: str) -> Admission:
    """Count one request of `who`; `what` names the budget. Raises LockError `lock_rate_limited` past `limit`."""
    admission = limiter.admit_now(who, limit, may_draw_on_reserve=False)
    if admission.verdict is Verdict.SPENT:
        seconds = admission.retry_after_seconds
        raise LockError("lock_rate_limited", f"{what} is spent: retry in {seconds} s", retry_after_seconds=seconds)
    return admission
