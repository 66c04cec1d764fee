"""Startup time of client programs: the import of the Python client, and `volcano-locks run` of an empty command.

Each sample is a new process, and the commands are interleaved. There is no goal.
"""

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .lock_server import create_project, running_server
from .machine import machine_facts
from .processes import run, volcano_locks_program
from .report import Report


def measure(folder: Path, *, samples: int) -> Report:
    """The report on startup times, with `samples` processes of each command."""
    machine = machine_facts(folder)
    with running_server(folder / "locks.db") as server:
        project = create_project(server)
        environment = {"VOLCANO_API_URL": server.url, "VOLCANO_SERVICE_KEY": project.service_key}
        commands: dict[str, Sequence[str]] = {
            "true": ["true"],
            "python -c pass": [sys.executable, "-c", "pass"],
            "import volcano_locks": [sys.executable, "-c", "import volcano_locks"],
            "from volcano_locks import Client": [sys.executable, "-c", "from volcano_locks import Client"],
            "volcano-locks --help": [volcano_locks_program(), "--help"],
            "volcano-locks run KEY -- true": [volcano_locks_program(), "run", "bench", "--", "true"],
        }
        durations: dict[str, list[float]] = {name: [] for name in commands}
        for sample in range(samples + 1):
            for name, command in commands.items():
                milliseconds = _milliseconds(command, environment)
                if sample > 0:  # the first one fills the caches
                    durations[name].append(milliseconds)
    medians = {name: statistics.median(samples_ms) for name, samples_ms in durations.items()}
    interpreter = medians["python -c pass"]
    return Report(
        name="startup-time",
        title=f"Time from start to end of a process, median of {samples}",
        header=("", "ms", "beyond the interpreter ms", "slowest ms"),
        rows=[
            (name, f"{median:.0f}", f"{max(0.0, median - interpreter):.0f}", f"{max(durations[name]):.0f}")
            for name, median in medians.items()
        ],
        facts=machine,
    )


def _milliseconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    began = time.perf_counter()
    run(command, environment=environment)
    return (time.perf_counter() - began) * 1_000
