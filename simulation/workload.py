"""What the simulated clients do: blocks with and without waits, leases by hand, reads, and force releases."""

from random import Random
from typing import Any, Final

from volcano_locks.errors import LockOwnershipLostError, VolcanoError
from volcano_locks.protocol.arguments import new_uuid
from volcano_locks.protocol.lease import Lease

from .client import Client, rest_seconds
from .deployment import Deployment
from .held_block import HeldBlock
from .profiles import Habits
from .world import World

CALL_SECONDS_MAX: Final = 120.0
REPEATED_SECONDS: Final = 1.0


class Worker:
    """One client and its endless work; a client that is gone is replaced by another of the next number."""

    def __init__(self, deployment: Deployment, number: int) -> None:
        self.number: Final = number
        self.lives = 0
        self.client: Client
        self.habits: Final[Habits] = deployment.plan.habits
        self._deployment: Final = deployment
        self._is_limited: Final = number % self.habits.limited_every == self.habits.limited_every - 1
        self.begin()

    def begin(self) -> None:
        """A new client process begins to work."""
        deployment, world = self._deployment, self._deployment.world
        self.lives += 1
        name = f"client-{self.number}" + (f".{self.lives}" if self.lives > 1 else "")
        self.client = Client(
            world,
            name,
            deployment.network,
            deployment.nodes,
            checker=deployment.checker,
            credential=deployment.credentials[self._is_limited],
        )
        self._rest(self.client)

    def _rest(self, client: Client) -> None:
        client.after(client.random.expovariate(1 / self.habits.rest_seconds), self._work, client)

    def _work(self, client: Client) -> None:
        habits, draw = self.habits, client.random
        key, ttl = self._lock(draw), draw.choice(habits.ttls)
        kind = draw.random()
        if kind < habits.forces:
            client.perform(
                client.operations.force_release(key, None, None, None), lambda _, error: self.rest_after(client, error)
            )
        elif kind < habits.forces + habits.reads:
            client.perform(client.operations.get(key, None), lambda _, error: self.rest_after(client, error))
        elif kind < habits.forces + habits.reads + habits.by_hand:
            _LeaseByHand(self, client, key, ttl).acquire()
        else:
            wait = draw.choice(habits.wait_seconds) if draw.random() < habits.waits else None
            body_seconds = draw.expovariate(1 / habits.body_seconds)
            if draw.random() < habits.long_bodies:
                body_seconds += ttl
            HeldBlock(client, key, ttl, wait=wait, body_seconds=body_seconds, on_left=lambda: self._rest(client))

    def rest_after(self, client: Client, error: VolcanoError | None = None) -> None:
        """Rest, for longer after a failure, then begin the next piece of work."""
        client.after(0.0 if error is None else rest_seconds(error), self._rest, client)

    def _lock(self, draw: Random) -> str:
        """One of the project's locks; with `lock_seconds`, one of those of this time."""
        name = f"{'limited' if self._is_limited else 'lock'}-{draw.randrange(self._deployment.plan.keys) + 1}"
        seconds = self.habits.lock_seconds
        return f"{name}-{int(self._deployment.world.now / seconds)}" if seconds else name


class _LeaseByHand:
    """A lease that the client acquires under a token of its own, renews once or twice, and releases or forgets."""

    def __init__(self, worker: Worker, client: Client, key: str, ttl: int) -> None:
        self._worker: Final = worker
        self._client: Final = client
        self._key: Final = key
        self._ttl: Final = ttl
        self._token = new_uuid()
        self._tries = 0
        self._renewals = client.random.randint(0, 2)
        self._lease: Lease | None = None
        self._is_over = False
        self._waited = False

    def acquire(self) -> None:
        client = self._client
        habits = self._worker.habits
        wait = client.random.choice(habits.wait_seconds) if client.random.random() < habits.waits else None
        self._waited = wait is not None
        operation = client.operations.acquire(self._key, self._ttl, self._token, None, wait)
        client.perform(operation, self._acquired)

    def _acquired(self, lease: Lease | None, error: VolcanoError | None) -> None:
        client = self._client
        if lease is None:
            self._tries += 1
            assert error is not None
            is_unknown = error.status in (None, 503)
            if is_unknown and self._tries < 3:
                if self._waited:  # its client has released the token, perhaps with effect only later
                    self._token = new_uuid()
                client.after(rest_seconds(error), self.acquire)  # the same token recovers the lease (SDK-18)
            else:
                self._worker.rest_after(client, error)
            return
        self._lease = lease
        client.checker.believes(client.name, self._key, lease.fencing_token, self._is_held)
        self._go_on()

    def _is_held(self) -> bool:
        lease, client = self._lease, self._client
        if lease is None or self._is_over or client.is_gone:
            return False
        assert lease.deadline is not None
        return client.clock.now() < lease.deadline

    def _go_on(self) -> None:
        client, habits = self._client, self._worker.habits
        body_seconds = client.random.expovariate(1 / habits.body_seconds)
        if self._renewals:
            self._renewals -= 1
            client.after(body_seconds, self._renew)
        elif client.random.random() < habits.forgets:
            self._worker.rest_after(client)
        else:
            client.after(body_seconds, self._release)

    def _renew(self) -> None:
        lease, client = self._lease, self._client
        assert lease is not None
        client.perform(client.operations.renew(self._key, lease, None, None), self._renewed)

    def _renewed(self, lease: Lease | None, error: VolcanoError | None) -> None:
        if lease is not None:
            self._lease = lease
        elif isinstance(error, LockOwnershipLostError):
            self._is_over = True
            self._worker.rest_after(self._client)
            return
        self._go_on()

    def _release(self) -> None:
        lease, client = self._lease, self._client
        assert lease is not None
        self._is_over = True
        client.perform(client.operations.release(self._key, lease, None), self._released)

    def _released(self, _result: Any, error: VolcanoError | None) -> None:
        client = self._client
        if client.random.random() < self._worker.habits.repeats:
            client.after(client.random.expovariate(1 / REPEATED_SECONDS), self._release_again)
        self._worker.rest_after(client, error)

    def _release_again(self) -> None:
        """As a cleanup does that does not know whether it has run: the token holds nothing any more."""
        lease, client = self._lease, self._client
        assert lease is not None
        client.perform(client.operations.release(self._key, lease, None), lambda _result, _error: None)


def watch_calls(world: World, workers: list[Worker], checker: Any) -> None:
    """Every call of a client ends: none is open for longer than CALL_SECONDS_MAX, pauses of the client aside."""
    for worker in workers:
        client = worker.client
        for call in client.open_calls:
            since = max(call.began_at, client.stalled_until)
            if not client.is_gone and world.now - since > CALL_SECONDS_MAX:
                checker.call_is_late(client.name, world.now - since)
