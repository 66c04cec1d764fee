"""The plan of one run: everything that a seed decides before the run begins, so that a smaller plan can be tried.

Seeds rotate through the profiles and each profile's engines. A seed draws the numbers of nodes, clients and locks, the
clients' habits, and a subset of the kinds of faults: runs in which few kinds of faults are frequent find more than runs
in which every kind is rare.
"""

import random
from dataclasses import dataclass, fields
from typing import Final

from .profiles import PROFILES, Habits, Profile, Store

COMMON: Final = (
    "client_dies",
    "client_stalls",
    "network_cuts",
    "network_duplicates",
    "network_is_slow",
    "network_loses",
    "node_dies",
    "node_dies_at_commit",
    "node_pauses",
    "node_stops",
    "machine_reboots",
    "clock_steps",
)
TARGETED: Final = ("holder_dies", "holder_is_cut_off", "holder_stalls", "waiter_is_cut_off")
OF_STORE: Final[dict[Store, tuple[str, ...]]] = {
    "sqlite": ("disk_fails", "disk_stalls"),
    "postgres": (
        "database_clock_steps",
        "database_fails_over",
        "messages_are_lost",
        "messages_are_slow",
        "store_cuts",
        "store_is_slow",
        "store_loses_replies",
    ),
    "etcd": (
        "election",
        "messages_are_lost",
        "messages_are_slow",
        "store_cuts",
        "store_is_slow",
        "store_loses_replies",
    ),
}
BEYOND_BOUNDS: Final = "clocks_beyond_bounds"
JUMPS: Final = frozenset({"machine_reboots", "clock_steps", "database_fails_over", "database_clock_steps"})


@dataclass(frozen=True)
class Plan:
    """`quota`: requests a minute of one of the two projects. `is_pooled`: no node can receive messages."""

    seed: int
    operations: int
    profile: str
    store: Store
    nodes: int
    clients: int
    keys: int
    streams: int
    faults: tuple[str, ...]
    habits: Habits
    quota: int = 0
    is_pooled: bool = False

    @property
    def clocks_are_bounded(self) -> bool:
        return BEYOND_BOUNDS not in self.faults

    @property
    def clocks_jump(self) -> bool:
        """Whether a store's clock may move ahead of real time."""
        return not JUMPS.isdisjoint(self.faults)

    def __str__(self) -> str:
        faults = ", ".join(self.faults) or "none"
        pooled = ", no messages" if self.is_pooled else ""
        return (
            f"seed {self.seed}, {self.operations} operations, profile {self.profile}: {self.store}, {self.nodes} "
            f"node(s), {self.clients} clients, {self.keys} locks, {self.streams} streams{pooled}; "
            f"{self.habits}; faults: {faults}"
        )


def plan_of(seed: int, operations: int, *, store: Store | None = None, profile: str | None = None) -> Plan:
    """The plan of a seed. `store` and `profile` override its own."""
    draw = random.Random(f"plan/{seed}")
    names = list(PROFILES)
    name = names[seed % len(names)] if profile is None else profile
    chosen = PROFILES[name]
    drawn_store = chosen.stores[seed // (len(names) if profile is None else 1) % len(chosen.stores)]
    store = drawn_store if store is None else store
    nodes = 1 if store == "sqlite" else draw.choice(chosen.nodes)
    return Plan(
        seed,
        operations,
        name,
        store,
        nodes,
        clients=draw.choice(chosen.clients),
        keys=draw.choice(chosen.keys),
        streams=draw.choice(chosen.streams),
        faults=_faults(draw, chosen, store),
        habits=_habits(draw, chosen),
        quota=draw.choice(chosen.quotas),
        is_pooled=store == "postgres" and draw.random() < chosen.pooled,
    )


def _faults(draw: random.Random, profile: Profile, store: Store) -> tuple[str, ...]:
    known = [*COMMON, *OF_STORE[store]]
    always = [fault for fault in profile.faults if fault in known or fault in TARGETED]
    others = [fault for fault in known if fault not in always and (profile.may_jump or fault not in JUMPS)]
    faults = always + draw.sample(others, min(len(others), draw.choice(profile.others)))
    if store == "etcd" and draw.random() < profile.beyond_bounds:
        faults.append(BEYOND_BOUNDS)
    return tuple(sorted(faults))


def _habits(draw: random.Random, profile: Profile) -> Habits:
    kept = ("wait_seconds", "ttls")
    drawn = {
        field.name: getattr(profile, field.name) if field.name in kept else draw.choice(getattr(profile, field.name))
        for field in fields(Habits)
    }
    return Habits(**drawn)
