"""The clocks of a plan with bounded clocks stay within the documented bounds, however long its run is."""

from typing import Final

from simulation.clocks import START_SECONDS, ProcessClock
from simulation.deployment import Deployment
from simulation.plan import plan_of
from simulation.world import World

from volcano_locks_server.ports.clock import AGREES_MS
from volcano_locks_server.stores.etcd.clock_skew import SKEW_MAX_MS

RUN_SECONDS: Final = 6 * 3_600


def test_synchronised_machines_agree_with_real_time_and_with_each_other_for_hours() -> None:
    world = World("1")
    machines = Deployment(plan_of(1, 1, store="etcd", profile="partitions"), world).machines
    assert len(machines) > 1
    clocks = [ProcessClock(machine) for machine in machines]
    world.now = RUN_SECONDS
    true_ms = (START_SECONDS + RUN_SECONDS) * 1_000
    assert all(abs(machine.date_ms() - true_ms) < AGREES_MS for machine in machines)
    shown_ms = [clock.now_ms() for clock in (*clocks, *map(ProcessClock, machines))]
    assert max(shown_ms) - min(shown_ms) < SKEW_MAX_MS
