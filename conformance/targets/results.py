"""Results that several targets build in the same form."""

from collections.abc import Sequence

from .target import Result


def failure(code: str, retry_after_seconds: int | None = None) -> Result:
    """A failure that the caller can see."""
    return (
        {"error": code} if retry_after_seconds is None else {"error": code, "retry_after_seconds": retry_after_seconds}
    )


def hold_text(holder: str | None, ended: str | None) -> str:
    """A hold of the history, as a scenario names it: its holder, and how it ended or `held`."""
    return f"{holder} {ended or 'held'}"


def class_names(error: BaseException) -> list[str]:
    """The names of the error's class and of all its base classes."""
    return [one.__name__ for one in type(error).__mro__ if issubclass(one, BaseException)]


def race_result(results: Sequence[Result]) -> Result:
    """The outcome of a race: the number of grants, the number of refusals by code, and a winner's lease."""
    granted = [one for one in results if "error" not in one]
    codes = [str(one["error"]) for one in results if "error" in one]
    refused = {code: codes.count(code) for code in sorted(set(codes))}
    summary: dict[str, object] = {"granted": len(granted), "refused": refused}
    if granted:
        summary |= {word: granted[0][word] for word in ("fencing_token", "expires_at_ms")}
    return summary
