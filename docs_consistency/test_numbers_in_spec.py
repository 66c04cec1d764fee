"""Each number in a rule equals the constant in the code."""

import re
from pathlib import Path

import pytest

from volcano_locks.cli import exit_codes
from volcano_locks_server.events import peer_messages, peer_state, unwatched
from volcano_locks_server.events.subscriber import QUEUE_MAX
from volcano_locks_server.http import auth, codec, credential_cache, failed_credentials, held_count, sessions
from volcano_locks_server.http.server import http1
from volcano_locks_server.ports import audit, lock_store
from volcano_locks_server.queue import fairness, node_turn, recheck, undelivered, waiter_table
from volcano_locks_server.rules import history, lease, shares, values
from volcano_locks_server.rules.hold import CLIENT_LENGTH_MAX
from volcano_locks_server.runtime import server, settings
from volcano_locks_server.service import activity, group_commit
from volcano_locks_server.stores.history_pages import SCAN_ENTRIES, TRIM_EVERY
from volcano_locks_server.stores.lock_pages import SCAN_RECORDS_MAX
from volcano_locks_server.telemetry import metrics

DAY_MS = 24 * 3600 * 1_000
NUMBERS = [
    ("lease.md", "LEASE-2", lease.DEADLINE_MS // DAY_MS, "days"),
    ("lease.md", "LEASE-4", lease.MARGIN_MS // 1_000, "s"),
    ("lease.md", "LEASE-6", lease.GRACE_MS // 1_000, "s"),
    ("lease.md", "LEASE-11", lease.RETIRED_MAX, "most recently retired tokens"),
    ("lease.md", "LEASE-11", lease.WITHDRAWN_KEPT_MS // 60_000, "minutes"),
    ("lease.md", "LEASE-13", lease.RETENTION_MS // 3_600_000, "hours"),
    ("http.md", "HTTP-7", values.KEY_LENGTH_MAX, "of `A-Z"),
    ("http.md", "HTTP-10", values.HOLDER_LENGTH_MAX, "visible"),
    ("http.md", "HTTP-11", values.TTL_SECONDS_MIN, "to"),
    ("http.md", "HTTP-11", values.TTL_SECONDS_MAX, ""),
    ("http.md", "HTTP-21", codec.BODY_BYTES_MAX, "bytes"),
    ("http.md", "HTTP-21", http1.CHUNK_BYTES_MAX, "bytes with its framing"),
    ("http.md", "HTTP-21", http1.CHUNK_BYTES_AHEAD_MAX, "bytes of chunks"),
    ("http.md", "HTTP-22", http1.HEADERS_MAX, "header fields"),
    ("http.md", "HTTP-22", http1.HEAD_BYTES_MAX, "bytes"),
    ("http.md", "HTTP-23", int(server.DRAIN_SECONDS_MAX), "seconds"),
    ("http.md", "HTTP-24", int(http1.HEAD_SECONDS_MAX), "seconds"),
    ("http.md", "HTTP-24", int(http1.BODY_SECONDS_MAX), "seconds"),
    ("http.md", "HTTP-24", int(http1.WRITE_SECONDS_MAX), ""),
    ("http.md", "HTTP-25", http1.KEEP_ALIVE_SECONDS, "seconds"),
    ("http.md", "HTTP-27", codec.TARGET_BYTES_MAX, "bytes with"),
    ("http.md", "HTTP-27", codec.QUERY_BYTES_MAX, "bytes"),
    ("http.md", "HTTP-27", codec.PARAMETERS_MAX, "parameters"),
    ("http.md", "HTTP-27", auth.CREDENTIAL_BYTES_MAX, "bytes"),
    ("http.md", "HTTP-35", failed_credentials.FREE_FAILURES, "times"),
    ("http.md", "HTTP-35", failed_credentials.DELAYED_PER_ADDRESS_MAX, "responses"),
    ("http.md", "HTTP-35", failed_credentials.DELAYED_MAX, "in"),
    ("http.md", "HTTP-35", failed_credentials.ADDRESSES_MAX, "addresses"),
    ("dashboard.md", "UI-11", activity.MINUTES, "minutes"),
    ("dashboard.md", "UI-11", activity.PROJECTS_MAX, "projects"),
    ("dashboard.md", "UI-11", activity.CONTENDED_MAX, "contended"),
    ("dashboard.md", "UI-11", activity.SHOWN_MAX, "keys"),
    ("audit.md", "AUDIT-3", audit.ENTRIES_MAX, "entries"),
    ("audit.md", "AUDIT-3", audit.ENTRIES_DAYS, "days"),
    ("audit.md", "AUDIT-4", shares.READER_REQUESTS_MAX, ""),
    ("dashboard.md", "UI-2", sessions.CODE_SECONDS, "seconds"),
    ("dashboard.md", "UI-3", sessions.SESSION_SECONDS // 3_600, "hours"),
    ("dashboard.md", "UI-3", credential_cache.CREDENTIAL_SECONDS_MAX, ""),
    ("dashboard.md", "UI-4", sessions.SESSIONS_PER_OWNER_MAX, "sessions"),
    ("dashboard.md", "UI-4", sessions.CODES_PER_OWNER_MAX, "codes"),
    ("dashboard.md", "UI-4", sessions.SESSIONS_MAX, "sessions"),
    ("dashboard.md", "UI-4", sessions.CODES_MAX, "codes"),
    ("dashboard.md", "UI-4", sessions.SIGN_INS_PER_MINUTE, "codes"),
    ("dashboard.md", "UI-6", sessions.SESSION_REQUESTS_PER_MINUTE, "requests"),
    ("http.md", "OPS-15", metrics.PROJECTS_MAX, "projects"),
    ("http.md", "QUOTA-1", values.REQUESTS_PER_MINUTE_DEFAULT, "unless changed"),
    ("http.md", "ADMIN-4", values.NAME_LENGTH_MAX, "of `A-Z"),
    ("http.md", "ADMIN-6", values.PERMISSIONS_MAX, "strings"),
    ("http.md", "ADMIN-6", values.PERMISSION_LENGTH_MAX, "characters"),
    ("http.md", "ADMIN-8", values.KEEP_OLD_SECONDS_MAX, ""),
    ("http.md", "ADMIN-9", credential_cache.CREDENTIAL_SECONDS_MAX, "seconds"),
    ("http.md", "ADMIN-12", credential_cache.CREDENTIAL_SECONDS_MAX, "seconds"),
    ("http.md", "ADMIN-10", values.PAGE_LIMIT_MAX, ""),
    ("http.md", "ADMIN-10", values.PAGE_LIMIT_DEFAULT, ""),
    ("http.md", "OPS-3", int(held_count.COUNT_EVERY_SECONDS), "seconds after"),
    ("http.md", "OPS-3", int(held_count.SCRAPED_SECONDS), "seconds without"),
    ("http.md", "OPS-3", int(held_count.FIRST_COUNT_SECONDS_MAX), "seconds for a count"),
    ("http.md", "OPS-12", int(group_commit.COMMIT_SECONDS_MAX), "seconds"),
    ("http.md", "OPS-12", lock_store.STORE_SECONDS_MAX, "."),
    ("watching.md", "LIST-1", values.LIST_LIMIT_MAX, "|"),
    ("watching.md", "LIST-1", values.LIST_LIMIT_DEFAULT, "|"),
    ("watching.md", "LIST-4", SCAN_RECORDS_MAX, "locks for one page"),
    ("watching.md", "LIST-8", shares.LISTS_AT_ONCE_MAX, "pages and rows at once"),
    ("watching.md", "LIST-8", shares.LISTS_WAITING_MAX, "requests wait"),
    ("watching.md", "EVENT-3", shares.WATCHED_LEASES_MAX, "leases are watched"),
    ("watching.md", "EVENT-5", shares.KEPT_EVENTS_MAX, "events"),
    ("watching.md", "EVENT-5", unwatched.RESETS_APART_MS // 1_000, "seconds"),
    ("watching.md", "EVENT-7", shares.STREAMS_MAX, "streams"),
    ("watching.md", "EVENT-7", QUEUE_MAX, "events wait"),
    ("watching.md", "EVENT-8", peer_messages.AHEAD_MS_MAX // 3_600_000, "hours ahead"),
    ("watching.md", "EVENT-8", peer_state.PEERS_MAX, "peers"),
    ("watching.md", "EVENT-8", peer_state.PEER_QUEUES_MAX, "of their queues"),
    ("watching.md", "EVENT-9", unwatched.RESETS_APART_MS // 1_000, "seconds"),
    ("history.md", "HISTORY-1", CLIENT_LENGTH_MAX, "characters"),
    ("history.md", "HISTORY-4", history.HISTORY_DAYS_MAX, ""),
    ("history.md", "HISTORY-4", history.HISTORY_DAYS_DEFAULT, "by default"),
    ("history.md", "HISTORY-4", history.ENTRIES_PER_LOCK_MAX, "entries of each lock"),
    ("history.md", "HISTORY-4", history.ENTRIES_MAX, "in all"),
    ("history.md", "HISTORY-4", history.ENTRIES_ETCD_MAX, ""),
    ("history.md", "HISTORY-4", TRIM_EVERY, "more entries of a lock"),
    ("history.md", "HISTORY-5", values.LIST_LIMIT_MAX, "|"),
    ("history.md", "HISTORY-5", values.LIST_LIMIT_DEFAULT, "|"),
    ("history.md", "HISTORY-5", SCAN_ENTRIES, "entries"),
    ("history.md", "HISTORY-7", shares.HISTORY_AT_ONCE_MAX, "pages of the history at once"),
    ("history.md", "HISTORY-7", shares.HISTORY_WAITING_MAX, "requests wait"),
    ("http.md", "HTTP-33", shares.ADMIN_REQUESTS_MAX, "are in progress"),
    ("http.md", "OPS-13", shares.LOG_LINES_PER_SECOND_MAX, "a second"),
    ("http.md", "OPS-13", shares.LOG_LINES_WAITING_MAX, "lines wait"),
    ("waiting.md", "WAIT-1", values.WAIT_SECONDS_MAX, ", fractions"),
    ("waiting.md", "WAIT-6", waiter_table.WAITER_KEPT_SECONDS, "seconds"),
    ("waiting.md", "WAIT-7", waiter_table.WAITERS_PER_LOCK_MAX, "waiters queue for one lock"),
    ("waiting.md", "WAIT-7", shares.WAITERS_MAX, "waiters queue on one node"),
    ("waiting.md", "WAIT-9", undelivered.RETRY_MS_MAX // 1_000, "second"),
    ("waiting.md", "WAIT-10", recheck.RECHECK_EVERY_SECONDS, "seconds"),
    ("waiting.md", "WAIT-10", node_turn.HANDOFFS_IN_A_ROW_MAX, "times in a row"),
    ("waiting.md", "WAIT-10", fairness.YIELD_MS, "milliseconds"),
    ("waiting.md", "WAIT-10", fairness.TURN_MS, "milliseconds"),
    ("cli.md", "CLI-4", exit_codes.USAGE, "|"),
    ("cli.md", "CLI-4", exit_codes.UNAVAILABLE, "|"),
    ("cli.md", "CLI-4", exit_codes.NOT_ACQUIRED, "|"),
    ("cli.md", "CLI-4", exit_codes.OWNERSHIP_LOST, "|"),
    ("cli.md", "CLI-4", exit_codes.CREDENTIALS, "|"),
    ("cli.md", "CLI-4", exit_codes.INTERNAL, "|"),
    ("cli.md", "CLI-4", exit_codes.INPUT_OUTPUT, "|"),
]


@pytest.mark.parametrize(("document", "rule", "number", "unit"), NUMBERS)
def test_the_rule_has_the_number_of_the_code(root: Path, document: str, rule: str, number: int, unit: str) -> None:
    text = (root / "spec" / document).read_text()
    begins = re.search(rf"^\*\*{rule}\*\*", text, re.MULTILINE)
    assert begins is not None
    following = re.search(r"^\*\*[A-Z]+-\d+\*\*", text[begins.end() :], re.MULTILINE)
    rule_text = text[begins.end() : begins.end() + following.start()] if following else text[begins.end() :]
    rule_text = re.sub(r"\s+", " ", rule_text)
    assert re.search(rf"(?<![\d,]){number:,}(?![\d])(?!,\d) ?{re.escape(unit)}", rule_text), rule_text


def test_the_port_is_the_servers_default(root: Path) -> None:
    """CLI-14: ports have no thousands separator."""
    assert f"port {settings.PORT_DEFAULT}" in (root / "spec/cli.md").read_text()
