"""Write the reference pages from the code and from spec/: `python docs/reference/generate.py`.

A test compares the committed pages with what this script writes, so a page cannot fall behind the code.
"""

import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

import yaml

from volcano_locks_server.runtime.settings import SETTINGS, Settings
from volcano_locks_server.telemetry.metrics import Metrics

HERE = Path(__file__).resolve().parent
SPEC = HERE.parents[1] / "spec"
NOTE = "<!-- written by generate.py; edit the source, then run python docs/reference/generate.py -->\n"
SERVER = "volcano_locks_server"
CLIENT = "volcano_locks"

LIMITS: dict[str, Sequence[tuple[str, str, str]]] = {
    "Requests": (
        (f"{SERVER}.rules.values", "KEY_LENGTH_MAX", "characters of a lock's key"),
        (f"{SERVER}.rules.values", "HOLDER_LENGTH_MAX", "characters of a holder's label"),
        (f"{SERVER}.rules.values", "TTL_SECONDS_MIN", "seconds, the shortest TTL"),
        (f"{SERVER}.rules.values", "TTL_SECONDS_MAX", "seconds, the longest TTL"),
        (f"{SERVER}.rules.values", "WAIT_SECONDS_MAX", "seconds that one request may wait in the queue"),
        (f"{SERVER}.http.codec", "BODY_BYTES_MAX", "bytes of a body; more is 413"),
        (f"{SERVER}.http.codec", "QUERY_BYTES_MAX", "bytes of a query string; more is 414"),
        (f"{SERVER}.http.codec", "PARAMETERS_MAX", "parameters of a query string; more is 400"),
        (f"{SERVER}.http.server.http1", "HEADERS_MAX", "header fields; more is 431"),
        (f"{SERVER}.http.server.http1", "HEAD_BYTES_MAX", "bytes of a head with its address; more is 431"),
    ),
    "Connections of one server": (
        (f"{SERVER}.http.server.connection_limits", "CONNECTIONS_MAX", "open connections; new ones close idle ones"),
        (f"{SERVER}.http.server.http1", "HEAD_SECONDS_MAX", "seconds to receive the head of a request"),
        (f"{SERVER}.http.server.http1", "BODY_SECONDS_MAX", "seconds to receive the body of a request"),
        (f"{SERVER}.http.server.http1", "WRITE_SECONDS_MAX", "seconds for a client to take a response"),
        (f"{SERVER}.http.server.http1", "KEEP_ALIVE_SECONDS", "seconds that an idle connection stays open"),
    ),
    "Queues of one server": (
        (f"{SERVER}.queue.waiter_table", "WAITERS_PER_LOCK_MAX", "waiters for one lock; more is 429"),
        (f"{SERVER}.queue.waiter_table", "WAITERS_MAX", "waiters in all; more is 503"),
        (f"{SERVER}.service.group_commit", "PENDING_MAX", "commands waiting for a commit; more is 503"),
    ),
    "Lists and event streams of one server": (
        (f"{SERVER}.rules.values", "LIST_LIMIT_DEFAULT", "locks on a page by default"),
        (f"{SERVER}.rules.values", "LIST_LIMIT_MAX", "locks on a page, at most"),
        (f"{SERVER}.http.lock_list_routes", "LISTS_AT_ONCE", "pages read at once"),
        (f"{SERVER}.http.lock_list_routes", "LISTS_WAITING_MAX", "list requests waiting; more is 503"),
        (f"{SERVER}.events.hub", "SUBSCRIBERS_MAX", "open event streams; more is 503"),
        (f"{SERVER}.events.subscriber", "QUEUE_MAX", "events waiting for one stream; more ends the stream"),
        (f"{SERVER}.events.hub", "RING_MAX", "recent events kept for streams that resume"),
        (f"{SERVER}.events.lease_expiry", "LEASES_MAX", "leases whose expiry is published at once"),
    ),
    "Projects and service keys": (
        (f"{SERVER}.rules.values", "REQUESTS_PER_MINUTE_DEFAULT", "requests per minute of a new project"),
        (f"{SERVER}.rules.values", "REQUESTS_PER_MINUTE_MAX", "requests per minute, at most; 0 means no quota"),
        (f"{SERVER}.rules.values", "NAME_LENGTH_MAX", "characters of a name"),
        (f"{SERVER}.rules.values", "PERMISSIONS_MAX", "permissions of a service key"),
        (f"{SERVER}.rules.values", "PERMISSION_LENGTH_MAX", "characters of a permission"),
        (f"{SERVER}.rules.values", "KEEP_OLD_SECONDS_MAX", "seconds that a rotated secret may stay valid"),
        (f"{SERVER}.rules.values", "PAGE_LIMIT_MAX", "projects or keys on a page"),
    ),
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def settings() -> str:
    """The settings of `serve` and its relatives, from the server's table."""

    def default(name: str) -> str:
        value = getattr(Settings(), name)
        return "none" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"

    rows = [
        ("none" if one.secret else f"`{one.flag}`", f"`{one.variable}`", default(one.name), one.what)
        for one in SETTINGS
    ]
    text = (
        "An option wins over its variable, a variable over the default. `volcano-locks serve --help` shows them too.\n"
    )
    return f"# Settings of the server\n\n{text}\n{table(('option', 'variable', 'default', 'meaning'), rows)}"


def exit_codes() -> str:
    """The exit codes of the command line, from rule CLI-4."""
    rule = (SPEC / "cli.md").read_text("utf-8").partition("**CLI-4**")[2].partition("**CLI-5**")[0]
    rows = "\n".join(re.findall(r"^\|.*\|$", rule, re.MULTILINE))
    text = "`volcano-locks run` exits with the code of its command. If no command ran, and for all other verbs:\n"
    return f"# Exit codes\n\n{text}\n{rows}\n"


def error_codes() -> str:
    """The error codes of the HTTP API, from errors.yaml."""
    codes = yaml.safe_load((SPEC / "errors.yaml").read_text("utf-8"))
    again = {True: "at once", "after": "after `Retry-After`", False: "no"}
    rows = [
        (f"`{code}`", str(one["status"]), again[one["retryable"]], one["meaning"], one["action"])
        for code, one in codes.items()
    ]
    text = 'A failed request gets `{"error": "a sentence", "code": "…"}`. Programs compare the code.\n'
    return f"# Error codes\n\n{text}\n{table(('code', 'status', 'retry', 'meaning', 'what to do'), rows)}"


def metrics() -> str:
    """The metrics of `/metrics`, from the families that the server publishes."""
    one = Metrics()
    one.store_counts = lambda: dict.fromkeys(("round_trips", "conflicts", "retries", "connects"), 0)
    one.request("acquire", "acquired", 0.0)
    one.waited("acquired", 0.0)
    one.store_error("late")
    one.text(0)
    rows = []
    for family in one.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        rows.append((f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation))
    text = (
        "`GET /metrics` answers in the Prometheus text format. Each server reports its own numbers; only\n"
        "`volcano_locks_held` covers the whole store. With `serve --workers N` all samples have the label `worker`.\n"
    )
    return f"# Metrics\n\n{text}\n{table(('metric', 'type', 'labels', 'meaning'), rows)}"


def limits() -> str:
    """Every limit that a user can meet, from the constants that the code obeys."""
    parts = ["# Limits\n\nEach limit is a named constant. A request past a limit gets an error that names the limit.\n"]
    for title, rows in LIMITS.items():
        cells = [(f"{getattr(import_module(module), name):,.10g}", what) for module, name, what in rows]
        parts.append(f"\n## {title}\n\n{table(('limit', 'what'), cells)}")
    return "".join(parts)


PAGES = {
    "settings.md": settings,
    "exit-codes.md": exit_codes,
    "error-codes.md": error_codes,
    "metrics.md": metrics,
    "limits.md": limits,
}


def pages() -> dict[str, str]:
    """Each page's text by its file name."""
    return {name: NOTE + page() for name, page in PAGES.items()}


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")
