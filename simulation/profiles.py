"""Profiles: kinds of runs, each of which brings one kind of fault about often.

A seed's profile is drawn by rotation (`plan.plan_of`). `mixed` draws everything; each other profile concentrates on one
promise. A fault that shows in a rare coincidence only needs a profile in which that coincidence is frequent.
"""

from dataclasses import dataclass
from typing import Final, Literal

Store = Literal["sqlite", "postgres", "etcd"]
STORES: Final[tuple[Store, ...]] = ("sqlite", "postgres", "etcd")
NETWORKED: Final[tuple[Store, ...]] = ("postgres", "etcd")


@dataclass(frozen=True)
class Habits:
    """What the clients of a run do, and how often: shares of 1, and average seconds.

    `waits`: of acquires that wait, for one of `wait_seconds`. `by_hand`: leases without a block. `forgets`: of leases
    by hand, never released. `repeats`: of releases that the client sends again later. `long_bodies`: of bodies that
    outlast their TTL. `lock_seconds`: after this time the clients use locks that have no record yet; 0: never.
    `limited_every`: each client of a multiple of this number uses the project with the quota.
    """

    waits: float
    wait_seconds: tuple[float, ...]
    ttls: tuple[int, ...]
    by_hand: float
    reads: float
    forces: float
    forgets: float
    repeats: float
    body_seconds: float
    long_bodies: float
    rest_seconds: float
    lock_seconds: float
    limited_every: int

    def __str__(self) -> str:
        ttls = " or ".join(map(str, sorted(set(self.ttls))))
        return (
            f"{self.waits:.0%} of acquires wait, TTLs of {ttls} s, bodies of {self.body_seconds} s, "
            f"{self.long_bodies:.0%} of them outlast the TTL"
        )


@dataclass(frozen=True)
class Profile:
    """What the plans of one profile draw from.

    `faults` are always there if the store has them, and `others` is how many more are drawn. Clocks jump only if
    `may_jump`, because a hold (LEASE-17) makes a run slow. The fields that `Habits` has too are the choices for its
    fields.
    """

    stores: tuple[Store, ...] = STORES
    nodes: tuple[int, ...] = (1, 2, 3)
    clients: tuple[int, ...] = (4, 8, 16, 24)
    keys: tuple[int, ...] = (1, 2, 4, 8)
    streams: tuple[int, ...] = (0,)
    faults: tuple[str, ...] = ()
    others: tuple[int, ...] = (0, 0, 1)
    quotas: tuple[int, ...] = (0,)
    pooled: float = 0.0
    beyond_bounds: float = 0.0
    may_jump: bool = False
    waits: tuple[float, ...] = (0.2, 0.8)
    wait_seconds: tuple[float, ...] = (1.0, 5.0, 20.0, 60.0)
    ttls: tuple[int, ...] = (5, 5, 6, 10, 30)
    by_hand: tuple[float, ...] = (0.1, 0.3)
    reads: tuple[float, ...] = (0.1,)
    forces: tuple[float, ...] = (0.0,)
    forgets: tuple[float, ...] = (0.0,)
    repeats: tuple[float, ...] = (0.0,)
    body_seconds: tuple[float, ...] = (0.01, 0.05, 0.3)
    long_bodies: tuple[float, ...] = (0.02,)
    rest_seconds: tuple[float, ...] = (0.01, 0.03, 0.1)
    lock_seconds: tuple[float, ...] = (0.0,)
    limited_every: tuple[int, ...] = (4,)


ALL_FAULTS: Final = 99

PROFILES: Final[dict[str, Profile]] = {
    # Everything, with few kinds of faults or all of them.
    "mixed": Profile(
        streams=(0, 2, 4),
        others=(0, 2, 4, 6, ALL_FAULTS),
        quotas=(0, 0, 300, 1_200),
        pooled=0.3,
        beyond_bounds=0.1,
        may_jump=True,
        forces=(0.0, 0.002, 0.02),
        forgets=(0.0, 0.1),
        repeats=(0.0, 0.02),
    ),
    # Many clients at few locks, which wait, poll, repeat releases, and let leases expire under waiters.
    "contention": Profile(
        nodes=(1, 2),
        clients=(12, 20),
        keys=(1,),
        faults=("network_duplicates", "store_is_slow"),
        others=(0, 0, 2),
        waits=(0.6,),
        wait_seconds=(5.0, 20.0, 60.0),
        ttls=(5,),
        by_hand=(0.3,),
        forgets=(0.0, 0.1),
        repeats=(0.1,),
        body_seconds=(0.01, 0.05),
        rest_seconds=(0.01, 0.1),
    ),
    # Waiters of several nodes at one lock, without messages between the nodes.
    "fairness": Profile(
        stores=("postgres",),
        nodes=(2, 3),
        clients=(16, 24),
        keys=(1,),
        others=(0,),
        pooled=0.8,
        waits=(1.0,),
        wait_seconds=(60.0,),
        ttls=(10,),
        by_hand=(0.0,),
        reads=(0.0,),
        body_seconds=(0.35,),
        long_bodies=(0.0,),
        rest_seconds=(0.003,),
    ),
    # Leases that live for long, under clocks that are stepped and machines that restart.
    "clocks": Profile(
        nodes=(1, 1, 2),
        clients=(4, 6),
        keys=(2, 3),
        faults=("clock_steps", "database_clock_steps", "machine_reboots", "node_dies"),
        others=(0, 0, 1),
        may_jump=True,
        waits=(0.3,),
        wait_seconds=(5.0, 20.0),
        ttls=(10, 30),
        by_hand=(0.0,),
        body_seconds=(4.0,),
        long_bodies=(0.5,),
        rest_seconds=(0.2,),
    ),
    # Nodes whose clocks run apart, beyond the documented bounds.
    "skew": Profile(
        stores=("etcd",),
        nodes=(2, 3),
        clients=(6,),
        keys=(4,),
        others=(0,),
        beyond_bounds=1.0,
        body_seconds=(0.3,),
        rest_seconds=(0.4,),
    ),
    # Holders that stall, or lose their network, until after the deadline of their lease.
    "deadlines": Profile(
        nodes=(1, 2),
        clients=(4, 6),
        keys=(1, 2),
        faults=("holder_is_cut_off", "holder_stalls"),
        others=(0, 1),
        waits=(0.8,),
        wait_seconds=(20.0, 60.0),
        ttls=(5, 10, 10),
        by_hand=(0.1,),
        body_seconds=(8.0,),
        long_bodies=(0.7,),
        rest_seconds=(0.1,),
    ),
    # Clients that wait, lose their node, and go on with the same token at another one.
    "partitions": Profile(
        stores=NETWORKED,
        nodes=(2, 3),
        clients=(8, 12),
        keys=(1, 2),
        faults=("client_dies", "network_cuts", "waiter_is_cut_off"),
        waits=(1.0,),
        wait_seconds=(20.0, 60.0),
        ttls=(10, 30),
        by_hand=(0.1,),
        body_seconds=(0.3,),
        rest_seconds=(0.05,),
    ),
    # Streams at locks that are seldom used, so that no later event makes up for a lost one.
    "watchers": Profile(
        stores=NETWORKED,
        nodes=(2, 3),
        clients=(3,),
        keys=(6,),
        streams=(4,),
        faults=("messages_are_lost",),
        others=(0, 1, 2),
        waits=(0.2,),
        wait_seconds=(5.0,),
        ttls=(30,),
        by_hand=(0.3,),
        body_seconds=(0.3,),
        rest_seconds=(3.0,),
    ),
    # Streams at locks that are hardly ever used again, and nodes that die between a commit and its publication.
    "crashes": Profile(
        stores=NETWORKED,
        nodes=(2, 3),
        clients=(3,),
        keys=(60,),
        streams=(4,),
        faults=("node_dies_at_commit",),
        others=(0,),
        waits=(0.2,),
        wait_seconds=(5.0,),
        ttls=(10, 30),
        by_hand=(0.3,),
        body_seconds=(0.3,),
        rest_seconds=(8.0,),
    ),
    # Streams at locks that change hands all the time, over slow stores.
    "busy_streams": Profile(
        stores=NETWORKED,
        nodes=(2, 3),
        clients=(8,),
        keys=(1, 2),
        streams=(2, 4),
        faults=("messages_are_slow", "node_pauses"),
        forgets=(0.0, 0.1),
        by_hand=(0.5,),
        ttls=(5,),
        body_seconds=(0.05, 0.3),
    ),
    # Locks that have no record yet, created by several nodes at once.
    "new_locks": Profile(
        nodes=(2, 3),
        clients=(8, 16),
        keys=(1, 2),
        waits=(0.2,),
        wait_seconds=(1.0,),
        ttls=(5,),
        body_seconds=(0.01,),
        rest_seconds=(0.05,),
        lock_seconds=(0.5,),
    ),
    # A quota that is used up within seconds.
    "quota": Profile(
        stores=("etcd", "postgres", "sqlite"),
        nodes=(1, 2, 3),
        clients=(4, 8),
        keys=(4,),
        quotas=(60, 120),
        body_seconds=(0.01,),
        long_bodies=(0.0,),
        rest_seconds=(0.03,),
        limited_every=(1, 2),
    ),
    # Few clients, which all wait, and holders that disappear: nothing but the recheck serves the waiters.
    "silence": Profile(
        nodes=(1, 2),
        clients=(3, 4),
        keys=(1,),
        faults=("holder_dies",),
        others=(0,),
        waits=(1.0,),
        wait_seconds=(20.0, 60.0),
        ttls=(5,),
        by_hand=(0.5,),
        reads=(0.0,),
        forgets=(0.5,),
        body_seconds=(0.3,),
        rest_seconds=(0.3,),
    ),
}
