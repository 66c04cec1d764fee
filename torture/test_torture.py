"""A short torture on each engine; `make torture` runs longer ones."""

import pytest

from .report import table
from .run import Run

SECONDS = 60
SEED = 12
pytestmark = [pytest.mark.real_time, pytest.mark.engines]


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "etcd"])
async def test_faults_violate_nothing(engine: str) -> None:
    """LEASE-3, LEASE-6, LEASE-14, LEASE-17, WAIT-10, SDK-4: through the clients of three languages."""
    run = Run(engine, SEED, print)
    await run.last(SECONDS)
    assert run.violations == []
    assert run.history.operations.total() > 200, "\n".join(table([run]))
