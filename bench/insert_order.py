"""The cost of new leases whose keys come in random order, compared with key order.

Loads: a million leases in one transaction, as `copy` writes them. Acquires: over HTTP, on a server that already holds
as many leases, so that the index of keys is as large as it will be.
"""

import asyncio
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .held_leases import create_files, load_leases
from .interleaved_rounds import rotated
from .lock_server import running_server
from .machine import machine_facts
from .processes import cpu_seconds
from .progress import progress
from .report import Goal, Report, problems_of, thousands
from .wrk import CONNECTIONS, KeyOrder, RoundResult

TIMES_KEY_ORDER_MAX: Final = 2.0
ORDERS: Final[Sequence[KeyOrder]] = ("ascending", "random")


def measure(folder: Path, *, rounds: int, leases: int, seconds: float) -> Report:
    """The report on `leases` leases. `seconds` is the length of one round of acquires."""
    facts = machine_facts(folder)
    load_seconds: dict[KeyOrder, list[float]] = {order: [] for order in ORDERS}
    acquires: dict[KeyOrder, list[RoundResult]] = {order: [] for order in ORDERS}
    cpu_us: dict[KeyOrder, list[float]] = {order: [] for order in ORDERS}
    for number in range(rounds):
        for order in rotated(ORDERS, number):
            loaded = folder / f"load-{number}-{order}.db"
            load_seconds[order].append(asyncio.run(load_leases(loaded, leases, keys=order)))
            loaded.unlink()
            progress(f"round {number + 1} of {rounds}, load, {order} keys: {load_seconds[order][-1]:.1f} s")
    project, _empty, full = create_files(folder, leases)
    for number in range(rounds):
        for order in rotated(ORDERS, number):
            copy = folder / "acquires.db"
            shutil.copyfile(full, copy)
            with running_server(copy) as server:
                cpu = cpu_seconds(server.pid)
                result = server.load(project.service_key, seconds, keys=order, release=False)
                cpu_us[order].append((cpu_seconds(server.pid) - cpu) * 1e6 / max(1, result.operations))
                acquires[order].append(result)
            progress(f"round {number + 1} of {rounds}, acquires, {order} keys: {thousands(result.per_second)}/s")
    loads = {order: statistics.median(load_seconds[order]) for order in ORDERS}
    rates = {order: statistics.median(one.per_second for one in acquires[order]) for order in ORDERS}
    times_loaded, times_acquired = loads["random"] / loads["ascending"], rates["ascending"] / rates["random"]
    return Report(
        name="insert-order",
        title=f"New leases in random order of their keys, medians of {rounds} rounds",
        header=("keys", f"load of {leases:,} leases s", f"acquires/s beside {leases:,} leases", "CPU µs per acquire"),
        rows=[
            (order, f"{loads[order]:.1f}", thousands(rates[order]), f"{statistics.median(cpu_us[order]):.0f}")
            for order in ORDERS
        ],
        facts=facts,
        goals=[
            _goal(f"a load of {leases:,} leases in random order", times_loaded),
            _goal(f"acquires in random order, {CONNECTIONS} connections", times_acquired),
        ],
        problems=[problem for order in ORDERS for problem in problems_of(order, acquires[order])],
    )


def _goal(text: str, times: float) -> Goal:
    limit = TIMES_KEY_ORDER_MAX
    return Goal(f"{text}, at most {limit:.0f} times the time of key order", f"{times:.2f}", times <= limit)
