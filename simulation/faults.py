"""The faults of a run. Each kind that the plan names strikes again and again, at random intervals."""

from collections.abc import Callable
from random import Random
from typing import Final

from .clocks import Machine
from .deployment import Deployment
from .node import Node
from .plan import BEYOND_BOUNDS
from .workload import Worker

BETWEEN_SECONDS: Final = 4.0  # on average, over all kinds of faults of a run
DISTURBED_SECONDS: Final = 8.0  # after a cut: sessions, clocks and queues need this to recover
SYNCHRONISED_SECONDS: Final = 0.1  # how far the date of a synchronised machine may be off
GONE_SECONDS: Final = 90.0  # longer than peers wait for a sign of life
NODE_MS_MAX: Final = 700  # how far a step may move a date, so that the nodes' clocks stay within SKEW_MAX_MS


class Faults:
    def __init__(self, deployment: Deployment, workers: list[Worker]) -> None:
        self._deployment: Final = deployment
        self._world: Final = deployment.world
        self._workers: Final = workers
        self._random: Final[Random] = deployment.world.random_for("faults")
        self._machines_made = 1
        for kind in deployment.plan.faults:
            if kind != BEYOND_BOUNDS:
                self._schedule(getattr(self, f"_{kind}"))

    def _schedule(self, strike: Callable[[], None]) -> None:
        self._world.after(
            self._random.expovariate(1 / (BETWEEN_SECONDS * len(self._deployment.plan.faults))), self._strike, strike
        )

    def _strike(self, strike: Callable[[], None]) -> None:
        strike()
        self._schedule(strike)

    # --- clients and their network ---

    def _client_dies(self) -> None:
        worker = self._random.choice(self._workers)
        client, exchanges_break = worker.client, self._random.random() < 0.5
        self._world.note(client.name, "dies" + ("" if exchanges_break else " without a word"))
        client.go(says_goodbye=exchanges_break)
        self._world.after(self._random.expovariate(0.5), worker.begin)

    def _client_stalls(self) -> None:
        client = self._random.choice(self._workers).client
        seconds = self._random.choice((0.5, 3.0, 12.0)) * self._random.random()
        self._world.note(client.name, f"stalls for {seconds:.1f} s")
        client.stalled_until = max(client.stalled_until, self._world.now + seconds)

    def _network_cuts(self) -> None:
        network, node = self._deployment.network, self._random.choice(self._deployment.nodes)
        until = self._world.now + self._random.expovariate(0.3)
        cut = [worker.client for worker in self._workers if self._random.random() < 0.5]
        self._world.note("network", f"cuts {len(cut)} clients off {node.name} until {until:.1f}")
        for client in cut:
            network.cut_until[client.name, node.name] = until

    def _network_loses(self) -> None:
        self._for_a_while(lambda: setattr(self._deployment.network, "loses", 0.02), "loses 2 % of messages")

    def _network_duplicates(self) -> None:
        self._for_a_while(lambda: setattr(self._deployment.network, "duplicates", 0.05), "duplicates 5 % of requests")

    def _for_a_while(self, begin: Callable[[], None], what: str) -> None:
        seconds = self._random.expovariate(0.2)
        self._world.note("network", f"{what} for {seconds:.1f} s")
        begin()
        self._world.after(seconds, self._calm_network)

    def _calm_network(self) -> None:
        network = self._deployment.network
        network.loses = network.duplicates = 0.0

    def _network_is_slow(self) -> None:
        network = self._deployment.network
        network.slow_until = self._world.now + self._random.expovariate(0.3)
        network.slow_seconds = self._random.choice((0.05, 0.5, 3.0))
        self._world.note("network", f"takes up to {network.slow_seconds} s until {network.slow_until:.1f}")

    # --- clients that hold a lock, or wait for one ---

    def _holder_dies(self) -> None:
        worker = self._holder()
        if worker is not None:
            self._world.note(worker.client.name, "dies without a word")
            worker.client.go(says_goodbye=False)
            self._world.after(self._random.expovariate(0.5), worker.begin)

    def _holder_stalls(self) -> None:
        """Until after the end of its lease, if that is a short one."""
        worker, seconds = self._holder(), self._random.uniform(3.0, 16.0)
        if worker is not None:
            self._world.note(worker.client.name, f"stalls for {seconds:.1f} s")
            worker.client.stalled_until = self._world.now + seconds

    def _holder_is_cut_off(self) -> None:
        """Responses are late for a while, so a renewal may be late, and then nothing passes until its lease is over."""
        worker = self._holder()
        if worker is None:
            return
        network, name = self._deployment.network, worker.client.name
        cut_at, seconds = self._world.now + self._random.uniform(0.0, 6.0), self._random.uniform(8.0, 16.0)
        network.slow_clients[name] = cut_at
        self._world.note(
            "network", f"delays responses to {name} by up to {network.SLOW_CLIENT_SECONDS} s until {cut_at:.1f}"
        )
        self._world.at(cut_at, self._cut_off, name, self._deployment.nodes, seconds)

    def _waiter_is_cut_off(self) -> None:
        """Its connection breaks and only the client notices; it goes on, perhaps at another node."""
        waiting = [worker.client for worker in self._workers if worker.client.is_waiting]
        if waiting:
            client = self._random.choice(waiting)
            self._world.note("network", f"breaks the connections of {client.name}, and its node does not notice")
            client.lose_connections()

    def _cut_off(self, client: str, nodes: list[Node], seconds: float) -> None:
        names = " and ".join(node.name for node in nodes)
        self._world.note("network", f"cuts {client} off {names} for {seconds:.1f} s")
        for node in nodes:
            self._deployment.network.cut_until[client, node.name] = self._world.now + seconds

    def _holder(self) -> Worker | None:
        """A client that believes in a lease."""
        holders = self._deployment.checker.believers()
        workers = [worker for worker in self._workers if worker.client.name in holders]
        return self._random.choice(workers) if workers else None

    # --- nodes ---

    def _node_dies(self) -> None:
        self._any_node().kill("is killed", restarts_after=0.2 + self._random.expovariate(0.5))

    def _node_dies_at_commit(self) -> None:
        """Between its next commit and everything that follows from it: the response, the events, the hand-off.

        Of several nodes, one is left: its streams are those that miss what the dead one did not publish.
        """
        node = self._any_node()
        restarts_after = self._random.choice((0.2, GONE_SECONDS, GONE_SECONDS)) + self._random.expovariate(0.5)
        with_clients = self._random.random() < 0.7

        def die() -> None:
            serving = [one for one in self._deployment.nodes if one.process is not None and one.process.is_serving]
            if len(serving) == 1 < len(self._deployment.nodes):
                return
            node.kill("is killed right after its commit", restarts_after=restarts_after)
            for worker in self._workers if with_clients else ():
                if worker.client.node is node and worker.client.open_calls and not worker.client.is_gone:
                    self._world.note(worker.client.name, "dies with the node, on whose machine it runs")
                    worker.client.go(says_goodbye=True)
                    self._world.after(self._random.expovariate(0.5), worker.begin)

        self._deployment.checker.at_next_commit[node.name] = lambda: self._world.after(0.0, die)

    def _node_pauses(self) -> None:
        node, seconds = self._any_node(), self._random.choice((0.3, 2.0, 12.0)) * self._random.random()
        node.pause(seconds)
        self._deployment.checker.excuse(node.name, seconds + DISTURBED_SECONDS)

    def _node_stops(self) -> None:
        self._any_node().stop()

    def _machine_reboots(self) -> None:
        """The date after a reboot is right if the machine synchronises; otherwise it may be far ahead."""
        node = self._any_node()
        node.kill("loses its machine", restarts_after=1.0 + self._random.expovariate(0.3))
        self._deployment.checker.clock_steps()
        node.machine.reboot()
        node.machine.is_synchronised = (
            abs(node.machine.date_error) < SYNCHRONISED_SECONDS and self._random.random() < 0.7
        )
        if not node.machine.is_synchronised:
            self._step_date(node)

    def _clock_steps(self) -> None:
        """A running process does not feel it."""
        self._step_date(self._any_node())

    def _step_date(self, node: Node) -> None:
        machine = node.machine
        before = machine.date_error
        if self._deployment.plan.store == "sqlite" or len(self._deployment.nodes) == 1:
            machine.date_error = max(before, self._random.choice((0.5, 5.0, 60.0, 3_600.0)) * self._random.random())
        else:
            machine.date_error = self._random.uniform(-NODE_MS_MAX, NODE_MS_MAX) / 2_000
        machine.is_synchronised = False
        self._deployment.checker.clock_steps()
        self._disturb_all(0.0)
        self._world.note(node.name, f"has a date that is {machine.date_error:+.3f} s off, was {before:+.3f} s")

    def _any_node(self) -> Node:
        return self._random.choice(self._deployment.nodes)

    # --- stores ---

    def _disk_stalls(self) -> None:
        file, seconds = self._deployment.file, self._random.choice((0.3, 4.0)) * self._random.random()
        assert file is not None
        self._world.note("disk", f"stalls for {seconds:.1f} s")
        file.stalled_until = self._world.now + seconds
        self._disturb_all(seconds)

    def _disk_fails(self) -> None:
        file, seconds = self._deployment.file, self._random.expovariate(1.0)
        assert file is not None
        file.disk_fails = self._random.choice((0.1, 1.0))
        self._world.note("disk", f"fails {file.disk_fails:.0%} of writes for {seconds:.1f} s")
        self._world.after(seconds, setattr, file, "disk_fails", 0.0)
        self._disturb_all(seconds)

    def _store_cuts(self) -> None:
        node, seconds = self._any_node(), self._random.expovariate(0.3)
        self._world.note("store", f"is cut off {node.name} for {seconds:.1f} s")
        self._deployment.wire.cut_until[node.name] = self._world.now + seconds
        self._deployment.checker.store_is_cut(node.name, seconds)
        self._deployment.checker.excuse(node.name, seconds + DISTURBED_SECONDS)

    def _store_is_slow(self) -> None:
        wire = self._deployment.wire
        wire.slow_until = self._world.now + self._random.expovariate(0.3)
        wire.slow_seconds = self._random.choice((0.02, 0.3, 2.0))
        self._world.note("store", f"takes up to {wire.slow_seconds} s until {wire.slow_until:.1f}")
        self._disturb_all(wire.slow_until - self._world.now)

    def _store_loses_replies(self) -> None:
        wire, seconds = self._deployment.wire, self._random.expovariate(0.5)
        wire.lose_reply = 0.1
        self._world.note("store", f"loses 10 % of its responses for {seconds:.1f} s")
        self._world.after(seconds, setattr, wire, "lose_reply", 0.0)
        self._disturb_all(seconds)

    def _messages_are_lost(self) -> None:
        node = self._any_node()
        self._world.note(node.name, "loses its session for messages")
        self._deployment.channel.lose_session(node.name)

    def _messages_are_slow(self) -> None:
        node, until = self._any_node(), self._world.now + self._random.expovariate(0.3)
        channel = self._deployment.channel
        self._world.note(node.name, f"receives messages up to {channel.SLOW_SECONDS} s late until {until:.1f}")
        channel.slow_until[node.name] = until

    def _election(self) -> None:
        cluster, seconds = self._deployment.cluster, self._random.expovariate(0.7)
        assert cluster is not None
        self._world.note("store", f"elects a leader for {seconds:.1f} s")
        cluster.has_no_leader_until = self._world.now + seconds
        self._disturb_all(seconds)

    def _database_fails_over(self) -> None:
        database, seconds = self._deployment.database, self._random.expovariate(0.7)
        assert database is not None
        self._machines_made += 1
        ahead = database.machine.date_error + self._random.uniform(-0.3, 0.3)
        machine = Machine(self._world, f"database-{self._machines_made}", date_error=ahead)
        self._world.note("store", f"fails over for {seconds:.1f} s, to a date {ahead:+.3f} s off")
        database.fail_over(seconds, machine)
        for node in self._deployment.nodes:
            self._deployment.channel.lose_session(node.name)
        self._deployment.checker.clock_steps()
        self._disturb_all(seconds)

    def _database_clock_steps(self) -> None:
        database = self._deployment.database
        assert database is not None
        seconds = self._random.choice((0.2, 5.0, 60.0, 60.0)) * self._random.uniform(0, 1)
        database.machine.date_error += seconds
        self._deployment.checker.clock_steps()
        self._disturb_all(0.0)
        self._world.note("store", f"has its date stepped by {seconds:+.3f} s")

    def _disturb_all(self, seconds: float) -> None:
        for node in self._deployment.nodes:
            self._deployment.checker.excuse(node.name, seconds + DISTURBED_SECONDS)
