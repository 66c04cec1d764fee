"""How long people and cron wait before anything happens: the client's import, and `volcano-locks run` of nothing.

Informative: no goal hangs on it. Each sample is a new process; the kinds take turns.
"""

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .machine import facts
from .ours import new_tenant, serving
from .processes import our_program, run
from .report import Report


def measure(folder: Path, *, samples: int) -> Report:
    """The report on start times; `samples` processes of each kind."""
    machine = facts(folder)
    with serving(folder / "locks.db") as server:
        tenant = new_tenant(server)
        reach = {"VOLCANO_API_URL": server.url, "VOLCANO_SERVICE_KEY": tenant.service_key}
        kinds: dict[str, Sequence[str]] = {
            "true": ["true"],
            "python -c pass": [sys.executable, "-c", "pass"],
            "import volcano_locks": [sys.executable, "-c", "import volcano_locks"],
            "from volcano_locks import Client": [sys.executable, "-c", "from volcano_locks import Client"],
            "import httpx2, for proxies": [sys.executable, "-c", "import httpx2"],
            "volcano-locks --help": [our_program(), "--help"],
            "volcano-locks run KEY -- true": [our_program(), "run", "bench", "--", "true"],
        }
        taken: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(samples + 1):
            for name, command in kinds.items():
                taken[name].append(_milliseconds(command, reach))
    medians = {name: statistics.median(times[1:]) for name, times in taken.items()}  # the first filled the caches
    interpreter = medians["python -c pass"]
    return Report(
        name="start",
        title=f"Time from start to end of a process, median of {samples}",
        header=("", "ms", "beyond the interpreter ms", "slowest ms"),
        rows=[
            (name, f"{median:.0f}", f"{max(0.0, median - interpreter):.0f}", f"{max(taken[name][1:]):.0f}")
            for name, median in medians.items()
        ],
        facts=machine,
    )


def _milliseconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    began = time.perf_counter()
    run(command, environment=environment)
    return (time.perf_counter() - began) * 1_000
