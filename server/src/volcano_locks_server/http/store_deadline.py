"""Bounds how long a request waits for the store, so that it is answered before its client gives up (OPS-12)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..ports.lock_store import STORE_SECONDS_MAX
from ..rules.errors import StoreUnavailableError


@asynccontextmanager
async def store_deadline() -> AsyncIterator[None]:
    """Cancels the block after STORE_SECONDS_MAX and raises StoreUnavailableError. A write may take effect later."""
    try:
        async with asyncio.timeout(STORE_SECONDS_MAX):
            yield
    except TimeoutError:
        late = f"the store did not answer within {STORE_SECONDS_MAX:g} s"
        raise StoreUnavailableError("store_late", late) from None
