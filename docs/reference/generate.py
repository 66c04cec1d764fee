"""Write the reference pages from the code and from spec/: `python docs/reference/generate.py`.

A test compares the committed pages with what this script writes, so a page cannot fall behind the code.
"""

import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

import yaml

from volcano_locks_server.http import held_count
from volcano_locks_server.rules.shares import Budgets, share_of
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
        (f"{SERVER}.rules.values", "REASON_LENGTH_MAX", "characters of the reason of a force release"),
        (f"{SERVER}.rules.values", "TTL_SECONDS_MIN", "seconds, the shortest TTL"),
        (f"{SERVER}.rules.values", "TTL_SECONDS_MAX", "seconds, the longest TTL"),
        (f"{SERVER}.rules.values", "WAIT_SECONDS_MAX", "seconds that one request may wait in the queue"),
        (f"{SERVER}.http.codec", "BODY_BYTES_MAX", "bytes of a body; more is 413"),
        (f"{SERVER}.http.codec", "TARGET_BYTES_MAX", "bytes of an address with its query; more is 414"),
        (f"{SERVER}.http.codec", "QUERY_BYTES_MAX", "bytes of a query string; more is 414"),
        (f"{SERVER}.http.codec", "PARAMETERS_MAX", "parameters of a query string; more is 400"),
        (f"{SERVER}.http.server.http1", "HEADERS_MAX", "header fields; more is 431"),
        (f"{SERVER}.http.server.http1", "HEAD_BYTES_MAX", "bytes of a head with its address; more is 431"),
        (f"{SERVER}.http.server.http1", "CHUNK_BYTES_MAX", "bytes of a chunked body with its framing; more is 413"),
    ),
    "Connections of one server": (
        (f"{SERVER}.http.server.connection_limits", "CONNECTIONS_MAX", "open connections; new ones close idle ones"),
        (f"{SERVER}.http.server.connection_limits", "UNREAD_MAX", "connections that leave responses unread"),
        (f"{SERVER}.http.server.connection_limits", "HANDSHAKE_SECONDS_MAX", "seconds to complete a TLS handshake"),
        (f"{SERVER}.http.server.http1", "HEAD_SECONDS_MAX", "seconds to receive the head of a request"),
        (f"{SERVER}.http.server.http1", "BODY_SECONDS_MAX", "seconds to receive the body of a request"),
        (f"{SERVER}.http.server.http1", "WRITE_SECONDS_MAX", "seconds for a client to take a response"),
        (f"{SERVER}.http.server.http1", "KEEP_ALIVE_SECONDS", "seconds that an idle connection stays open"),
    ),
    "Credentials that fail": (
        (f"{SERVER}.http.failed_credentials", "FREE_FAILURES", "failures of one address that are not delayed"),
        (f"{SERVER}.http.failed_credentials", "DELAY_MS_MAX", "ms that a response to a further failure waits"),
        (f"{SERVER}.http.failed_credentials", "DELAYED_PER_ADDRESS_MAX", "responses of one address that wait at once"),
        (f"{SERVER}.http.failed_credentials", "DELAYED_MAX", "responses that wait at once"),
        (f"{SERVER}.http.failed_credentials", "ADDRESSES_MAX", "addresses whose failures are remembered"),
        (f"{SERVER}.http.credential_cache", "LOOKUPS_MAX", "unknown credentials being looked up; more is 503"),
    ),
    "Sessions of the dashboard": (
        (f"{SERVER}.http.sessions", "SESSION_SECONDS", "seconds that a session lasts"),
        (f"{SERVER}.http.sessions", "SESSIONS_PER_OWNER_MAX", "sessions of a credential; the first to end makes room"),
        (f"{SERVER}.http.sessions", "SESSIONS_MAX", "sessions in a store; the first to end makes room"),
        (f"{SERVER}.http.sessions", "CODE_SECONDS", "seconds that a one-time code is valid"),
        (f"{SERVER}.http.sessions", "CODES_PER_OWNER_MAX", "codes of a credential; the first to end makes room"),
        (f"{SERVER}.http.sessions", "CODES_MAX", "codes in a store; the first to end makes room"),
        (f"{SERVER}.http.sessions", "SESSION_REQUESTS_PER_MINUTE", "requests of a session in a minute; more is 429"),
        (
            f"{SERVER}.http.sessions",
            "PROJECT_SESSION_REQUESTS_PER_MINUTE",
            "requests of all sessions of a project in a minute; more is 429",
        ),
        (f"{SERVER}.http.sessions", "SIGN_INS_PER_MINUTE", "sign-ins of a credential in a minute; more is 429"),
    ),
    "Audit, activity and nodes of one server": (
        (
            f"{SERVER}.http.request_budget",
            "READER_REQUESTS_PER_MINUTE",
            "requests for them with a project's service keys in a minute; more is 429",
        ),
    ),
    "Queues of one server": (
        (f"{SERVER}.queue.waiter_table", "WAITERS_PER_LOCK_MAX", "waiters for one lock; more is 429"),
    ),
    "The file of a SQLite store": (
        (f"{SERVER}.stores.sqlite.file_lock", "CHECK_SECONDS", "seconds until a replaced file is noticed"),
        (f"{SERVER}.stores.sqlite.checkpoints", "FAILING_MS_MAX", "ms of failing checkpoints; then not ready"),
    ),
    "Lists and event streams of one server": (
        (f"{SERVER}.rules.values", "LIST_LIMIT_DEFAULT", "locks on a page by default"),
        (f"{SERVER}.rules.values", "LIST_LIMIT_MAX", "locks on a page, at most"),
        (f"{SERVER}.http.lock_list_routes", "QUEUE_SHOWN_MAX", "waiters in the row of one lock"),
        (f"{SERVER}.events.subscriber", "QUEUE_MAX", "events waiting for one stream; more ends the stream"),
        (
            f"{SERVER}.events.stream_turns",
            "STREAMS_AT_ONCE",
            "streams of a project that get each event at once; more get their events in turns, 1,000 streams a second",
        ),
    ),
    "Activity of one server": (
        (f"{SERVER}.service.activity", "MINUTES", "minutes that are remembered"),
        (
            f"{SERVER}.service.activity",
            "PROJECTS_MAX",
            "projects; past it the one that was quiet for longest is forgotten",
        ),
        (f"{SERVER}.service.activity", "CONTENDED_MAX", "contended locks of a project in half an hour"),
    ),
    "Audit": (
        (f"{SERVER}.ports.audit", "ENTRIES_MAX", "entries in a store; projects share them"),
        (f"{SERVER}.ports.audit", "ENTRIES_DAYS", "days for which an entry is kept"),
    ),
    "History": (
        (f"{SERVER}.rules.history", "HISTORY_DAYS_DEFAULT", "days for which it is kept by default"),
        (f"{SERVER}.rules.history", "HISTORY_DAYS_MAX", "days for which it may be kept"),
        (f"{SERVER}.rules.history", "ENTRIES_PER_LOCK_MAX", "entries of a lock; the oldest go first"),
        (f"{SERVER}.stores.history_pages", "TRIM_EVERY", "entries of a lock that a node may store past this"),
        (f"{SERVER}.rules.history", "ENTRIES_MAX", "entries in all; projects share them"),
        (f"{SERVER}.rules.history", "ENTRIES_ETCD_MAX", "entries in all over etcd"),
        (f"{SERVER}.stores.history_pages", "SCAN_ENTRIES", "locks and entries examined for one page of several locks"),
        (f"{SERVER}.rules.hold", "CLIENT_LENGTH_MAX", "characters of a `User-Agent` that are kept"),
    ),
    "Metrics": ((f"{SERVER}.telemetry.metrics", "PROJECTS_MAX", "projects with counters of their own"),),
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

BUDGETS: dict[str, tuple[str, str, str]] = {
    "waiters": ("waiters", "429 `too_many_waiters`", "503"),
    "streams": ("open event streams", "429 `too_many_streams`", "503"),
    "watched_leases": (
        "leases whose expiry is published at once",
        "streams of the project get a `reset` every 10 s",
        "the same",
    ),
    "ended_leases": (
        "ended leases, of which late events are recognised",
        "the project's oldest is dropped",
        "the oldest of the project with the most is dropped",
    ),
    "kept_events": (
        "recent events, for streams that resume",
        "the project's oldest is dropped; a stream that needs it gets a `reset`",
        "the oldest of the project with the most is dropped",
    ),
    "lists_at_once": ("pages and rows read at once", "the request waits", "the request waits"),
    "lists_waiting": ("list requests that wait", "429 `too_many_requests`", "503"),
    "history_at_once": ("pages of the history read at once", "the request waits", "the request waits"),
    "history_waiting": ("history requests that wait", "429 `too_many_requests`", "503"),
    "commands_pending": ("requests that wait for a commit", "429 `too_many_requests`", "503"),
    "log_lines_per_second": (
        "lines a second about refusals and failures",
        "left out; `lines_passed_over` has their number",
        "the same",
    ),
    "log_lines_waiting": (
        "lines waiting for a slow log stream",
        "dropped, see `volcano_locks_log_lines_dropped_total`",
        "the same",
    ),
    "reader_requests": (
        "requests for the audit, activity and nodes with a service key",
        "429 `too_many_requests`",
        "503",
    ),
    "admin_requests": ("admin requests in progress; projects use none", "", "503"),
}
"""By name: what the budget is of, what happens past a project's share, and past the budget."""


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


class NoFile:
    """A store file, for the metrics of one."""

    log_bytes = checkpoint_failures = 0


def metrics() -> str:
    """The metrics of `/metrics`, from the families that the server publishes."""
    one = Metrics(budgets=Budgets, per_project=True)
    one.file = NoFile()
    one.store_counts = lambda: dict.fromkeys(("round_trips", "conflicts", "retries", "connects"), 0)
    one.request("acquire", "acquired", 0.0)
    one.project_request("id", "project", "acquired")
    one.waited("acquired", 0.0)
    one.store_error("late")
    one.certificate_expires_seconds = 0
    rows = []
    for family in one.families(held=0):
        labels = sorted({name for _, labels, _ in family.samples for name in re.findall(r"(\w+)=", labels)} - {"le"})
        rows.append((f"`{family.name}`", family.kind, ", ".join(f"`{label}`" for label in labels), family.meaning))
    text = (
        "`GET /metrics` answers in the Prometheus text format. Each server reports its own numbers; only\n"
        "`volcano_locks_held` covers the whole store. With `serve --workers N` all samples have the label `worker`.\n\n"
        "`volcano_locks_held` is counted in the background while the server is scraped: each time "
        f"{held_count.COUNT_EVERY_SECONDS:.0f} s after the end\n"
        "of the count before, or later if counting takes more than "
        f"{held_count.COUNT_EVERY_SECONDS / (1 / held_count.COUNTING_SHARE - 1):.1f} s, so that it takes at most "
        f"{held_count.COUNTING_SHARE:.0%} of the time. A scrape\n"
        "gets the newest result at once, or no `volcano_locks_held` if the count failed. The first scrape, and one\n"
        f"after {held_count.SCRAPED_SECONDS:.0f} s without a scrape, waits up to "
        f"{held_count.FIRST_COUNT_SECONDS_MAX:.0f} s for a count.\n"
    )
    return f"# Metrics\n\n{text}\n{table(('metric', 'type', 'labels', 'meaning'), rows)}"


def budgets() -> str:
    """The node-wide budgets, from the objects that count them."""
    rows = []
    for one in Budgets():
        what, past_share, past_budget = BUDGETS[one.name]
        half, quarter = share_of(one.limit, 0), share_of(one.limit, one.limit)
        share = f"{half:,}, or {quarter:,}" if past_share else "none"
        rows.append((f"`{one.name}`", what, f"{one.limit:,}", share, past_share or "none", past_budget))
    text = (
        "Each server has these budgets. One project may use its share: half of the budget, or a quarter while more\n"
        "than half is in use. A 429 and a 503 carry `Retry-After: 1`. The metrics `volcano_locks_budget_used`,\n"
        "`volcano_locks_budget_limit` and `volcano_locks_budget_refusals_total` show each budget by its name in the\n"
        "label `budget`; the label `past` of a refusal is `share` or `budget`.\n"
    )
    head = ("budget", "of", "limit", "share", "past the share", "past the budget")
    return f"\n## Budgets and shares\n\n{text}\n{table(head, rows)}"


def limits() -> str:
    """Every limit that a user can meet, from the constants that the code obeys."""
    parts = ["# Limits\n\nEach limit is a named constant. A request past a limit gets an error that names the limit.\n"]
    for title, rows in LIMITS.items():
        cells = [(f"{getattr(import_module(module), name):,.10g}", what) for module, name, what in rows]
        parts.append(f"\n## {title}\n\n{table(('limit', 'what'), cells)}")
    return "".join([*parts, budgets()])


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
