"""CLI-18, CLI-19: each way of breaking a service is found by the checks for it, and by no others.

The server is the real one with a rule replaced, or with its responses changed before they are sent. The pauses of the
checks advance its clock and theirs, so no test waits for a lease. The two checks with renewals in the background need
real time and have tests at the end.
"""

import asyncio
import json
import re
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from volcano_locks.cli.verify.all_checks import CHECKS
from volcano_locks.cli.verify.check import Check, ScratchLock
from volcano_locks.cli.verify.http_client import HttpClient
from volcano_locks.cli.verify.runner import KEY_PREFIX, CheckResult, ServiceUnderTest, new_run_name, run_all
from volcano_locks.clock import Clock, SystemClock
from volcano_locks.testing import ManualClock
from volcano_locks_server.http.app import App
from volcano_locks_server.http.codec import Message, Receive, Scope, Send
from volcano_locks_server.rules import lease
from volcano_locks_server.runtime import server
from volcano_locks_server.testing import ManualClock as ServerClock
from volcano_locks_server.testing import RunningServer, running_server

TTL_SECONDS = 5
IN_BACKGROUND = {"a loss reaches the block", "a loss cancels an async block"}
QUOTA = re.compile(rb"x-ratelimit-.*")


class SentResponse(NamedTuple):
    """A response before it is sent, with its request."""

    scope: Scope
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


# --- broken rules -----------------------------------------------------------------------------------------

_acquire, _renew, _extended = lease.acquire, lease.renew, lease._extended


def _token_does_not_rise(record: lease.LockRecord | None, now_ms: int) -> int:
    return now_ms if record is None or record.fencing_token == 0 else record.fencing_token


def _all_win(record: lease.LockRecord | None, command: lease.Acquire, now_ms: int) -> lease.Decision:
    decision = _acquire(record, command, now_ms)
    if isinstance(record, lease.Held) and decision.outcome == lease.held_by(record):
        return lease.Decision(record, lease.Granted(record.expires_at_ms, record.fencing_token, "acquired"))
    return decision


def _renewal_acquires(record: lease.LockRecord | None, command: lease.Renew, now_ms: int) -> lease.Decision:
    if isinstance(record, lease.Free):
        return _acquire(None, lease.Acquire(command.owner_digest, command.ttl_seconds), now_ms)
    return _renew(record, command, now_ms)


def _any_token_releases(record: lease.LockRecord | None, command: lease.Release, now_ms: int) -> lease.Decision:
    last = 0 if record is None else record.fencing_token
    return lease.Decision(lease.Free(last, now_ms, (command.owner_digest,)), lease.Released(None))


def _never_shorter(held: lease.Held, command: Any, now_ms: int, how: Any) -> lease.Decision:
    decision = _extended(held, command, now_ms, how)
    granted = decision.outcome
    assert isinstance(granted, lease.Granted)
    longest = max(held.expires_at_ms, granted.expires_at_ms)
    return lease.Decision(decision.record, lease.Granted(longest, granted.fencing_token, how))


def _repeat_is_new(held: lease.Held, command: Any, now_ms: int, how: Any) -> lease.Decision:
    decision = _extended(held, command, now_ms, how)
    granted = decision.outcome
    assert isinstance(granted, lease.Granted)
    token = granted.fencing_token + (how == "repeated")
    return lease.Decision(decision.record, lease.Granted(granted.expires_at_ms, token, how))


BROKEN_RULES: list[tuple[str, str, Any, set[str]]] = [
    (
        "the fencing token does not rise",
        "next_fencing_token",
        _token_does_not_rise,
        {
            "the fencing token rises after a release",
            "the fencing token rises after a force release",
            "a lower fencing token is refused",
            "a takeover after the grace",
        },
    ),
    ("there is no grace", "GRACE_MS", 0, {"no takeover in the grace"}),
    ("there is no margin", "MARGIN_MS", 0, {"no extension in the margin"}),
    ("the grace does not end", "GRACE_MS", 60_000, {"a takeover after the grace"}),
    ("every acquire wins", "acquire", _all_win, {"one of several acquires wins", "no takeover in the grace"}),
    ("retired tokens acquire again", "is_retired", lambda *_: False, {"a retired token cannot acquire"}),
    (
        "a late renewal acquires",
        "renew",
        _renewal_acquires,
        {"a late renewal creates nothing", "the fencing token rises after a force release"},
    ),
    (
        "any token may release",
        "release",
        _any_token_releases,
        {"only the owner renews and releases", "a takeover after the grace"},
    ),
    ("a renewal never shortens", "_extended", _never_shorter, {"a renewal sets a new expiry"}),
    ("a repeat is a new lease", "_extended", _repeat_is_new, {"a repeated acquire is the same lease"}),
]


@pytest.mark.parametrize(("name", "found_by"), [(r[1], r[3]) for r in BROKEN_RULES], ids=[r[0] for r in BROKEN_RULES])
async def test_a_broken_rule_is_found_by_its_checks(
    name: str, found_by: set[str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-18."""
    broken = next(rule for rule in BROKEN_RULES if rule[0] == request.node.callspec.id)
    monkeypatch.setattr(lease, name, broken[2])
    assert await _found() == found_by


# --- broken responses ---------------------------------------------------------------------------------------


def _method(sent: SentResponse) -> str:
    method: str = sent.scope["method"]
    return method


def _of_lease(sent: SentResponse) -> bool:
    return bool(sent.scope["path"].endswith("/lease"))


def _free_has_more_fields(sent: SentResponse) -> SentResponse:
    return sent._replace(body=sent.body.replace(b"false}", b'false,"expires_at":null}'))


def _no_quota(sent: SentResponse) -> SentResponse:
    return sent._replace(headers=[one for one in sent.headers if not QUOTA.fullmatch(one[0])])


def _quota_is_not_counted(sent: SentResponse) -> SentResponse:
    header = (b"x-ratelimit-remaining", b"600")
    return sent._replace(headers=[header if one[0] == header[0] else one for one in sent.headers])


def _own_request_id(sent: SentResponse) -> SentResponse:
    own = (b"x-volcano-request-id", str(uuid.uuid4()).encode())
    return sent._replace(headers=[own if one[0] == own[0] else one for one in sent.headers])


def _other_code(sent: SentResponse) -> SentResponse:
    return sent._replace(body=sent.body.replace(b'"invalid_ttl"', b'"invalid_request"'))


def _other_status(sent: SentResponse) -> SentResponse:
    return sent._replace(status=422 if sent.status == 400 else sent.status)


def _unknown_is_forbidden(sent: SentResponse) -> SentResponse:
    return sent._replace(status=403 if sent.status == 401 else sent.status)


def _anon_is_unknown(sent: SentResponse) -> SentResponse:
    return sent._replace(status=401 if sent.status == 403 else sent.status)


def _fails_for_escapes(sent: SentResponse) -> SentResponse:
    return sent._replace(status=500) if b"%3A" in sent.scope["raw_path"] else sent


def _repeats_the_token(sent: SentResponse) -> SentResponse:
    token = dict(sent.scope["headers"]).get(b"x-volcano-lock-token", b"")
    body = json.dumps({"error": f"what is {token.decode()}?", "code": "invalid_lock_token"}).encode()
    return sent._replace(body=body) if b'"invalid_lock_token"' in sent.body else sent


def _no_allow(sent: SentResponse) -> SentResponse:
    return sent._replace(headers=[one for one in sent.headers if one[0] != b"allow"])


def _labels_refused(sent: SentResponse) -> SentResponse:
    labelled = dict(sent.scope["headers"]).get(b"x-volcano-lock-holder") == b"a/1"
    return sent._replace(status=400, body=b'{"error": "no", "code": "invalid_holder"}') if labelled else sent


def _accepts_anything(sent: SentResponse) -> SentResponse:
    return sent._replace(status=201, body=b"{}") if b'"invalid_request"' in sent.body else sent


def _release_is_forgotten(sent: SentResponse) -> SentResponse:
    refused = _method(sent) == "DELETE" and _of_lease(sent) and sent.status == 204
    return sent._replace(status=409, body=b'{"error": "no", "code": "lock_ownership_lost"}') if refused else sent


BROKEN_RESPONSES: list[tuple[Callable[[SentResponse], SentResponse], set[str]]] = [
    (_free_has_more_fields, {"a read returns the state"}),
    (_no_quota, {"quota headers"}),
    (_quota_is_not_counted, {"quota headers"}),
    # The client refuses a response with another request id (SDK-2), so its blocks fail too.
    (_own_request_id, {"request ids are echoed or generated", "released after success", "released after failure"}),
    (_other_code, {"refusals have codes", "input is strict"}),
    (_other_status, {"wrong input is refused", "refusals have codes", "input is strict", "holder labels"}),
    (_unknown_is_forbidden, {"no credential, no response", "an anon key is refused"}),
    (_anon_is_unknown, {"an anon key is refused"}),
    (_fails_for_escapes, {"a key is decoded once"}),
    (_repeats_the_token, {"the owner token is in no response"}),
    (_no_allow, {"addresses and methods"}),
    (_labels_refused, {"holder labels"}),
    (_accepts_anything, {"input is strict"}),
    (
        _release_is_forgotten,
        {
            "a release frees the lock",
            "a late renewal creates nothing",
            "a release may be repeated",
            "a retired token cannot acquire",
            "the fencing token rises after a release",
            "a read returns the state",
            "released after success",
        },
    ),
]


@pytest.mark.parametrize(
    ("change", "found_by"), BROKEN_RESPONSES, ids=[one[0].__name__.strip("_") for one in BROKEN_RESPONSES]
)
async def test_a_broken_answer_is_found_by_its_checks(
    change: Callable[[SentResponse], SentResponse], found_by: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-18."""
    monkeypatch.setattr(server, "App", _app_with(change))
    assert await _found() == found_by


async def test_a_failing_server_is_reported_and_the_other_checks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-19."""
    monkeypatch.setattr(server, "App", _app_with(_fails_for_escapes))
    failed = [result for result in await _all() if not result.holds]
    assert [result.saw for result in failed] == ["inconclusive: GET got 500"]


async def test_a_spent_quota_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-19: no promise counts as kept."""
    monkeypatch.setattr(server, "App", _app_with(lambda sent: sent._replace(status=429)))
    results = await _all()
    assert not any(result.holds for result in results)
    assert {result.saw for result in results if "quota" in result.saw}


async def test_slow_responses_are_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-19: a renewal refused after the expiry is no evidence about the margin before it."""
    clocks = _Clocks()

    def slow(sent: SentResponse) -> SentResponse:
        clocks.checks.jump(1.0)
        return sent

    monkeypatch.setattr(server, "App", _app_with(slow))
    results = await _all(clocks, [check for check in CHECKS if check.name.startswith("no ") and check.waits])
    observed = [result.saw.partition(" (")[0] for result in results]
    assert observed == ["inconclusive: responses came too late for a verdict"] * 2


async def test_failing_checks_free_their_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-19."""
    monkeypatch.setattr(lease, "next_fencing_token", _token_does_not_rise)
    clocks = _Clocks()
    with running_server(clock=clocks.server) as running:
        async with HttpClient(running.url, running.service_key, clocks.checks) as http:
            for number, check in enumerate(CHECKS):
                if check.name not in IN_BACKGROUND:
                    service = ServiceUnderTest(
                        http, TTL_SECONDS, _options(running, clocks.checks), f"{KEY_PREFIX}:{number}"
                    )
                    await run_all(service, [check], lambda _result: None)
                    assert (await http.read(f"{KEY_PREFIX}:{number}:0")).json == {"held": False}, check.name


@pytest.mark.real_time
async def test_interrupted_checks_free_their_locks(caplog: pytest.LogCaptureFixture) -> None:
    """CLI-19: no check continues after the run, when it has no connection to the server."""
    holding: list[str] = []

    async def hang(lock: ScratchLock) -> str:
        await lock.hold()
        holding.append(lock.key)
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5_000 * holding.index(lock.key)):  # some need longer than others to end
                await asyncio.sleep(0)
        return ""

    with running_server() as running:
        run = asyncio.create_task(_run(running, SystemClock(), [CHECKS[0]._replace(run=hang)] * 4))
        while len(holding) < 4:
            await asyncio.sleep(0.001)
        run.cancel()
        await asyncio.wait([run])
        assert run.cancelled()
        assert len(asyncio.all_tasks()) == 1
        async with HttpClient(running.url, running.service_key, SystemClock()) as http:
            assert [(await http.read(key)).json for key in holding] == [{"held": False}] * 4
    assert caplog.text == ""


@pytest.mark.real_time
async def test_a_loss_without_notification_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-18: this server renews every lease, so a holder continues after a force release."""

    def renewed(record: lease.LockRecord | None, command: lease.Renew, now_ms: int) -> lease.Decision:
        expires_at_ms = now_ms + command.ttl_seconds * 1_000
        return lease.Decision(record, lease.Granted(expires_at_ms, 1, "renewed"))

    monkeypatch.setattr(lease, "renew", renewed)
    checks = [check for check in CHECKS if check.name in IN_BACKGROUND]
    with running_server() as running:
        results = await _run(running, SystemClock(), checks)
    assert [result.saw for result in results] == [
        f"the block was not notified of a force release within its {TTL_SECONDS} s"
    ] * 2


# --- helpers ----------------------------------------------------------------------------------------------


class _Clocks:
    """The server's clock and the checks' clock, advanced together."""

    def __init__(self) -> None:
        self.server = ServerClock()
        self.checks = ManualClock(on_move=self._moved)

    def _moved(self, seconds: float) -> None:
        self.server.advance(round(seconds * 1_000))


def _app_with(change: Callable[[SentResponse], SentResponse]) -> type[App]:
    """The application with every response to a lock request changed."""

    class Changed(App):
        def __init__(self, **parts: Any) -> None:
            super().__init__(**parts)
            self.lease_requests.enabled = False  # so that every response passes here

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            started: Message = {}

            async def changed(message: Message) -> None:
                if message["type"] == "http.response.start":
                    started.update(message)
                    return
                sent = SentResponse(scope, started["status"], list(started["headers"]), message.get("body", b""))
                sent = change(sent)
                length = (b"content-length", str(len(sent.body)).encode())
                headers = [length if name == length[0] else (name, value) for name, value in sent.headers]
                if sent.status != 204 and length not in headers:
                    headers.append(length)
                await send({**started, "status": sent.status, "headers": headers})
                await send({**message, "body": sent.body})

            await super().__call__(scope, receive, changed)

    return Changed


async def _found() -> set[str]:
    """The names of the failed checks."""
    return {result.check.name for result in await _all() if not result.holds}


async def _all(clocks: _Clocks | None = None, checks: list[Check] | None = None) -> list[CheckResult]:
    clocks = clocks or _Clocks()
    chosen = checks or [check for check in CHECKS if check.name not in IN_BACKGROUND]
    with running_server(clock=clocks.server) as running:
        # One by one, because all checks advance the same clock.
        return [result for check in chosen for result in await _run(running, clocks.checks, [check])]


async def _run(running: RunningServer, clock: Clock, checks: list[Check]) -> list[CheckResult]:
    async with HttpClient(running.url, running.service_key, clock) as http:
        service = ServiceUnderTest(http, TTL_SECONDS, _options(running, clock), new_run_name())
        return await run_all(service, checks, lambda _result: None)


def _options(running: RunningServer, clock: Clock) -> dict[str, Any]:
    return {"api_url": running.url, "service_key": running.service_key, "clock": clock}
