"""Answers that every face of this folder gives in the same words."""

from collections.abc import Sequence

from .target import Answer


def failure(code: str, retry_after_seconds: int | None = None) -> Answer:
    """A failure the caller was told about."""
    return (
        {"error": code} if retry_after_seconds is None else {"error": code, "retry_after_seconds": retry_after_seconds}
    )


def classes_of(error: BaseException) -> list[str]:
    """The names of the error's class and of all its base classes."""
    return [one.__name__ for one in type(error).__mro__ if issubclass(one, BaseException)]


def race_told(answers: Sequence[Answer]) -> Answer:
    """How a race ended: how many were granted, how many refused with which code, and what a winner was told."""
    granted = [one for one in answers if "error" not in one]
    codes = [str(one["error"]) for one in answers if "error" in one]
    refused = {code: codes.count(code) for code in sorted(set(codes))}
    told: dict[str, object] = {"granted": len(granted), "refused": refused}
    if granted:
        told |= {word: granted[0][word] for word in ("fencing_token", "expires_at_ms")}
    return told
