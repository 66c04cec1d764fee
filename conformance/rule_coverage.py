"""Which rules of spec/ each target exercised: a rule counts as tested if a scenario that names it passed on the target.

`coverage_plugin.py` records the scenarios that passed. After a run of the whole suite it reports each missing pair of
rule and target as a failed test. `EXEMPT` lists the rules that scenarios cannot show on some targets. Tests of the
client or the server itself name these rules; docs_consistency/test_rule_coverage.py checks that.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from .scenario.parser import Scenario
from .targets.catalog import TARGETS

REPOSITORY: Final = Path(__file__).parents[1]
DOCUMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "clients": {"SDK": "sdk.md"},
    "server": {
        "LEASE": "lease.md",
        "QUOTA": "http.md",
        "WAIT": "waiting.md",
        "LIST": "watching.md",
        "EVENT": "watching.md",
    },
}
"""By side: the families of rules that scenarios show, and the documents that define them."""

CLIENTS: Final = frozenset(target.name for target in TARGETS if target.side == "clients")
SERVERS: Final = frozenset(target.name for target in TARGETS if target.side == "server")
FAKES: Final = frozenset(target for target in CLIENTS if target.endswith("-fake"))
WITHOUT_STREAMS: Final = SERVERS - {"http-sqlite", "http-postgres"}

EXEMPT: Final[Mapping[str, frozenset[str]]] = {
    # tokens in the client's own texts, and the fake that it ships, are the client's own to show
    "SDK-8": CLIENTS,
    "SDK-10": CLIENTS,
    # how a program ends, and what a returned value is, differ in each language
    "SDK-19": CLIENTS,
    "SDK-22": CLIENTS,
    # interrupts, the end of a program and its log are the language's own
    "SDK-23": CLIENTS,
    "SDK-25": CLIENTS,
    # a fake has no network that fails, and no proxy that counts what was sent
    **dict.fromkeys(("SDK-2", "SDK-9", "SDK-18", "SDK-21"), FAKES),
    # threads and Ruby cannot stop a body
    "SDK-20": frozenset({"python-sqlite", "python-fake", "ruby-sqlite", "ruby-fake"}),
    # the search reads files and memory, not the tables of a database server
    "LEASE-15": frozenset({"service-etcd", "service-postgres", "http-postgres"}),
    # a scenario has one clock, which no time passes without
    "LEASE-17": SERVERS,
    # a scenario cannot spoil what is stored
    "LEASE-18": SERVERS,
    # no clock of a scenario goes back
    "LEASE-19": SERVERS,
    # several nodes, or more requests than a scenario has
    "QUOTA-6": SERVERS,
    "QUOTA-7": SERVERS,
    "QUOTA-8": SERVERS,
    "WAIT-7": SERVERS,
    "WAIT-10": SERVERS,
    "WAIT-11": SERVERS,
    "WAIT-12": SERVERS,
    "WAIT-13": SERVERS,
    "LIST-6": SERVERS,
    "LIST-7": SERVERS,
    "LIST-8": SERVERS,
    # the vocabulary of scenarios has no queue of a row
    "LIST-9": SERVERS,
    "EVENT-6": SERVERS,
    "EVENT-7": SERVERS,
    "EVENT-8": SERVERS,
    # scenarios subscribe to all events
    "EVENT-11": SERVERS,
    # a memory store cannot restart
    "WAIT-8": frozenset({"service-memory", "http-app-memory"}),
    # only a target without a listener has a store that fails on demand
    "WAIT-9": frozenset({"http-sqlite", "http-postgres"}),
    # a stream needs a listener
    **{f"EVENT-{number}": WITHOUT_STREAMS for number in (*range(1, 6), 9, 10)},
}


class Pair(NamedTuple):
    """A rule on a target."""

    rule: str
    target: str


def defined_rules(family: str, document: str) -> list[str]:
    """The ids of a family's rules in the order of their document."""
    text = (REPOSITORY / "spec" / document).read_text("utf-8")
    return re.findall(rf"^\*\*({family}-\d+)\*\*", text, re.MULTILINE)


def required_pairs() -> set[Pair]:
    """Every rule on every target on which scenarios must show it."""
    return {
        Pair(rule, target)
        for side, targets in (("clients", CLIENTS), ("server", SERVERS))
        for family, document in DOCUMENTS[side].items()
        for rule in defined_rules(family, document)
        for target in targets - EXEMPT.get(rule, frozenset())
    }


def exercised_pairs(scenarios: Iterable[Scenario], passed: Mapping[str, Iterable[str]]) -> set[Pair]:
    """What the passed scenarios show; `passed` has the names of the targets by scenario id."""
    return {
        Pair(rule, target)
        for scenario in scenarios
        for rule in scenario.proves
        for target in passed.get(scenario.id, ())
    }
