"""What several targets read from the arguments of a verb."""

from collections.abc import Mapping

from .store_failures import UNLIMITED


def actor_and_key(args: Mapping[str, object]) -> tuple[str, str]:
    """The key under which a target keeps an actor's wait, block, watch or campaign."""
    return str(args["actor"]), str(args["key"])


def racer_tokens(args: Mapping[str, object]) -> list[str]:
    """The racers' owner tokens."""
    tokens = args["tokens"]
    assert isinstance(tokens, list)
    return tokens


def holder_label(args: Mapping[str, object]) -> str:
    """The holder label that an actor sends: its name."""
    return str(args.get("actor", "racer"))


def fault_count(args: Mapping[str, object]) -> int:
    """How many requests an outage affects: unlimited by default."""
    return int(str(args.get("count", UNLIMITED)))
