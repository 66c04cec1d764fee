"""The vocabulary of scenario files: every verb, its arguments, and what a step can expect of its result.

`VERBS` is the table. A check is a function that takes a value from the file and returns what is wrong with it, or None.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

Check = Callable[[object], str | None]

STEPS_MAX: Final = 200
REPEAT_MAX: Final = 1_000
RACE_MAX: Final = 256
FOREVER: Final = "forever"

RULE_ID: Final = re.compile(r"[A-Z]+-[1-9][0-9]*")
CLASS: Final = re.compile(r"([A-Z][a-z]+)+Error")
NAME: Final = re.compile(r"[a-z][a-z0-9_]*")

SCENARIO_TARGETS: Final = ("all", "server", "clients")
OPERATIONS: Final = ("acquire", "renew", "release", "get", "force_release", "stream")
FAULT_KINDS: Final = {
    "drop_before": "connections are refused, for lasts_ms if given: the client knows that nothing was sent",
    "reset": "the connection breaks while the request is sent: not served, but the client cannot know",
    "drop_after": "served, and the connection breaks before the response",
    "drop_within": "served, and the connection closes in the middle of the response's body",
    "hang_before": "not served, without a response: the client's own timeout ends the request",
    "hang_after": "served, without a response",
    "delay_before": "served after a delay of delay_ms",
    "delay_after": "served, and the response arrives after delay_ms",
    "duplicate": "served twice; the client gets the second response",
    "altered": "served, and the response has the fields of answer with those values",
    "answer_503": "not served: 503 lock_service_unavailable with Retry-After: retry_after_seconds (default 1)",
    "answer_503_empty": "not served: 503 without a body, a code and Retry-After",
    "answer_403": "not served: 403 missing_permission",
    "answer_500": "not served: 500 internal",
    "answer_429": "not served: 429 lock_rate_limited with Retry-After: retry_after_seconds (default 1)",
    "answer_page": "not served: 502 with a proxy's HTML page",
    "store_before": "the server's store is unavailable and writes nothing",
    "store_after": "the server's store writes, but does not acknowledge",
}
STORE_FAULT_KINDS: Final = frozenset({"store_before", "store_after"})


def a_name(value: object) -> str | None:
    return None if isinstance(value, str) and NAME.fullmatch(value) else "must be a name such as ann or first_lease"


def a_text(value: object) -> str | None:
    return None if isinstance(value, str) and value else "must be a text"


def a_prefix(value: object) -> str | None:
    return None if isinstance(value, str) else "must be a text, which may be empty"


def a_bool(value: object) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def a_number(low: int, high: int = 10**12) -> Check:
    def check(value: object) -> str | None:
        fits = type(value) is int and low <= value <= high
        return None if fits else f"must be a whole number from {low} to {high}"

    return check


def seconds(value: object) -> str | None:
    fits = value == FOREVER or (isinstance(value, int | float) and not isinstance(value, bool) and value >= 0)
    return None if fits else f"must be seconds, at least 0, or {FOREVER}"


def texts(value: object) -> str | None:
    fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return None if fits else "must be a list of texts"


def names_of_classes(value: object) -> str | None:
    fits = isinstance(value, list) and value and all(isinstance(one, str) and CLASS.fullmatch(one) for one in value)
    return None if fits else "must be a list of classes of errors such as RateLimitedError"


def a_text_or_null(value: object) -> str | None:
    return None if value is None else a_text(value)


def a_number_or_null(value: object) -> str | None:
    return None if value is None else a_number(0)(value)


def one_of(*words: str) -> Check:
    return lambda value: None if value in words else f"must be one of {', '.join(words)}"


def some_of(*words: str) -> Check:
    def check(value: object) -> str | None:
        fits = isinstance(value, list) and value and all(one in words for one in value)
        return None if fits else f"must be a list of {', '.join(words)}"

    return check


def counts(value: object) -> str | None:
    fits = isinstance(value, dict) and all(isinstance(k, str) and type(v) is int for k, v in value.items())
    return None if fits else "must map words to whole numbers"


def fields(value: object) -> str | None:
    plain = (str, int, float, bool, type(None))
    fits = isinstance(value, dict) and value and all(isinstance(one, plain) for one in value.values())
    return None if fits else "must map fields of the answer to plain values"


def items(checks: Mapping[str, Check], needed: str) -> Check:
    """A list of mappings, each with `needed` and no word that `checks` does not know."""

    def check(value: object) -> str | None:
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            return "must be a list of mappings"
        for number, one in enumerate(value, 1):
            if needed not in one or not set(one) <= set(checks):
                return f"{number} must have {needed} and may have {', '.join(sorted(set(checks) - {needed}))}"
            for word, given in one.items():
                if wrong := checks[word](given):
                    return f"{number}: {word} {wrong}"
        return None

    return check


def a_relation(*words: str | None) -> Check:
    """A whole number, one of `words`, or {equals|greater_than|less_than: remembered name}."""

    def check(value: object) -> str | None:
        if value in words or type(value) is int:
            return None
        if isinstance(value, dict) and len(value) == 1:
            ((relation, name),) = value.items()
            if relation in RELATIONS and a_name(name) is None:
                return None
        named = ["null" if word is None else word for word in words]
        return f"must be {', '.join((*named, 'a whole number, {'))}{' | '.join(RELATIONS)}: remembered name}}"

    return check


RELATIONS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "equals": lambda now, before: now == before,
    "greater_than": lambda now, before: now > before,
    "less_than": lambda now, before: now < before,
}


@dataclass(frozen=True)
class Verb:
    """The arguments of a verb (`needs` are required) and `answers`, the fields that `expect` can check.

    `bare` is the check of a verb that takes one plain value instead of a mapping.
    """

    args: Mapping[str, Check] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    answers: Mapping[str, Check] = field(default_factory=dict)
    bare: Check | None = None
    clients_only: bool = False


_CALLER: Final = {"actor": a_name, "key": a_text}
_OWNER: Final = {**_CALLER, "token": a_name}
_TAKER: Final = {**_OWNER, "ttl_seconds": a_number(0)}
_MISUSE: Final = {"given": one_of("another_key", "no_lease")}
_IDS: Final = {"request_id": a_name, "spelling": one_of("upper")}
_WAITER: Final = {**_TAKER, "wait_seconds": seconds, "throws": a_bool}
_QUOTA: Final = {"quota_remaining": a_number(0), "quota_limit": a_number(0), "quota_reset_in_seconds": a_number(0, 60)}
_FAILURE: Final = {"error": a_text, "retry_after_seconds": a_number(0), "error_classes": names_of_classes}
_ANSWER: Final = {**_FAILURE, **_QUOTA}
_LEASE: Final = {
    "fencing_token": a_relation("now"),
    "expires_at_ms": a_relation(),
    "expires_in_ms": a_number(-(10**12)),
}
_GRANT_OR_HOLDER: Final = {
    "fencing_token": a_relation("now", None),
    "expires_at_ms": a_relation(None),
    "expires_in_ms": a_number(-(10**12)),
    "holder": a_text_or_null,
}
_VIEW: Final = {
    **_LEASE,
    "fencing_token": a_relation("now", None),
    "held": a_bool,
    "holder": a_text_or_null,
    "acquired_ago_ms": a_number(0),
    "renewed_ago_ms": a_number(0),
    "ttl_seconds": a_number_or_null,
    "waiters": a_number(0),
}

_EVENT: Final = {
    "event": one_of("acquired", "renewed", "released", "expired", "force_released", "waiting", "gave_up", "reset"),
    "key": a_text,
    "why": a_text,
    "holder": a_text_or_null,
    "fencing_token": a_relation(None),
    "reason": a_text_or_null,
    "ago_ms": a_number(0),
    "expires_in_ms": a_number(-(10**12)),
}
_CHANGE: Final = {
    "held": a_bool,
    "holder": a_text_or_null,
    "fencing_token": a_relation(None),
    "ago_ms": a_number_or_null,
}

VERBS: Final[Mapping[str, Verb]] = {
    # the five basic verbs
    "acquire": Verb({**_WAITER, **_IDS}, ("actor",), {**_ANSWER, **_GRANT_OR_HOLDER, "ids_kept": a_bool}),
    "renew": Verb({**_TAKER, **_MISUSE}, ("actor",), {**_ANSWER, **_LEASE}),
    "release": Verb({**_OWNER, **_MISUSE}, ("actor",), _ANSWER),
    "get": Verb(_CALLER, (), {**_ANSWER, **_LEASE, "held": a_bool}),
    "force_release": Verb({**_CALLER, "lease": a_name, "reason": a_text}, (), _ANSWER),
    # an acquire that waits while other actors continue
    "wait": Verb(_WAITER, ("actor", "wait_seconds")),
    "waited": Verb(_CALLER, ("actor",), {**_ANSWER, **_GRANT_OR_HOLDER, "pending": a_bool}),
    "hang_up": Verb(_CALLER, ("actor",)),
    # reading locks
    "view": Verb(_CALLER, (), {**_ANSWER, **_VIEW}),
    "list": Verb(
        {"actor": a_name, "prefix": a_text, "state": one_of("held", "free", "all"), "limit": a_number(1)},
        (),
        {**_ANSWER, "keys": texts},
    ),
    "history": Verb(_CALLER, (), {**_ANSWER, "holds": texts}),
    # events
    "subscribe": Verb({**_CALLER, "prefix": a_prefix, "after": a_text}, ("actor",), _ANSWER),
    "events": Verb({"actor": a_name}, ("actor",), {"events": items(_EVENT, "event")}),
    "watch": Verb(_CALLER, ("actor",), clients_only=True),
    "watched": Verb(_CALLER, ("actor",), {"changes": items(_CHANGE, "held")}, clients_only=True),
    "cut": Verb({"actor": a_name}, ("actor",), clients_only=True),
    # a client's block: the body runs between enter and exit; the guard can also be read after exit
    "enter": Verb(
        {**_WAITER, "hold_at_least_seconds": seconds, "renew_every_seconds": a_number(1)},
        ("actor",),
        {**_FAILURE, **_LEASE},
        clients_only=True,
    ),
    # a block whose body enters another one on the same key: the result is that of the inner block
    "nest": Verb(
        {**_CALLER, "ttl_seconds": a_number(0), "wait_seconds": seconds},
        ("actor",),
        {**_FAILURE, "lost": a_bool},
        clients_only=True,
    ),
    "guard": Verb(_CALLER, ("actor",), {"lost": a_bool, "stopped": a_bool, **_LEASE}, clients_only=True),
    "exit": Verb(
        {**_CALLER, "body": one_of("returns", "raises", "cancelled")},
        ("actor",),
        {**_FAILURE, "attached": a_text},
        clients_only=True,
    ),
    # leader election: the function runs from each start to its end
    "lead": Verb({**_CALLER, "ttl_seconds": a_number(0)}, ("actor",), clients_only=True),
    "leading": Verb(
        _CALLER,
        ("actor",),
        {"starts": a_number(0), "ends": a_number(0), "fencing_token": a_relation()},
        clients_only=True,
    ),
    "resign": Verb(
        {**_CALLER, "body": one_of("returns", "raises", "cancelled")}, ("actor",), _FAILURE, clients_only=True
    ),
    # an exclusive function
    "call": Verb(
        {
            **_CALLER,
            "ttl_seconds": a_number(0),
            "on_held": one_of("raise", "skip", "wait"),
            "hold_at_least_seconds": seconds,
            "body": one_of("returns", "raises"),
        },
        ("actor",),
        {**_FAILURE, **_GRANT_OR_HOLDER, "ran": a_bool},
        clients_only=True,
    ),
    "sent": Verb(
        {"actor": a_name},
        ("actor",),
        {**{one: a_number(0) for one in OPERATIONS}, "tokens": a_number(0), "request_ids": a_number(0)},
        clients_only=True,
    ),
    # concurrent acquires, each with its own token
    "race": Verb(
        {"actors": a_number(2, RACE_MAX), "key": a_text, "ttl_seconds": a_number(0), "wait_seconds": seconds},
        ("actors",),
        {"granted": a_number(0), "refused": counts, **_LEASE},
    ),
    # time
    "advance_ms": Verb(bare=a_number(0)),
    "pause_ms": Verb(bare=a_number(0), clients_only=True),
    # network, server and store
    "outage": Verb(
        {
            "kind": one_of(*FAULT_KINDS),
            "actor": a_name,
            "count": a_number(1),
            "of": some_of(*OPERATIONS),
            "delay_ms": a_number(1),
            "lasts_ms": a_number(1),
            "answer": fields,
            "retry_after_seconds": a_number(1),
        },
        ("kind",),
    ),
    "outage_ends": Verb(),
    "restart": Verb({"clock_behind_ms": a_number(1)}, (), {"error": a_text}),
    "purge": Verb({}, (), {"purged": a_number(0)}),
    "search_store": Verb({"token": a_name}, ("token",), {"found": a_bool, "digest_found": a_bool}),
    # control flow
    "repeat": Verb({"times": a_number(1, REPEAT_MAX), "steps": lambda _value: None}, ("times", "steps")),
}
