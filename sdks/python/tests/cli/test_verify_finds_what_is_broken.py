"""CLI-18, CLI-19: a service broken in one way on purpose, and the checks that must find it; and no others.

The server is the real one with a rule replaced, or with its answers changed on their way out. Its clock and the
checks' are moved by the checks' own pauses, so that no lease is waited for. The two checks whose renewals run in
the background need real time and are tried at the end.
"""

import asyncio
import json
import re
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from volcano_locks.cli.verify.check import Check, Room
from volcano_locks.cli.verify.checks import CHECKS
from volcano_locks.cli.verify.http_client import Wire
from volcano_locks.cli.verify.runner import KEY_PREFIX, Result, Site, new_run_name, run_all
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


class Went(NamedTuple):
    """One answer on its way out, after the request that it answers."""

    scope: Scope
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


# --- rules broken -----------------------------------------------------------------------------------------

_acquire, _renew, _extended = lease.acquire, lease.renew, lease._extended


def _token_stands(record: lease.LockRecord | None, now_ms: int) -> int:
    return now_ms if record is None or record.fencing_token == 0 else record.fencing_token


def _all_win(record: lease.LockRecord | None, command: lease.Acquire, now_ms: int) -> lease.Decision:
    decision = _acquire(record, command, now_ms)
    if decision.outcome is lease.HELD and isinstance(record, lease.Held):
        return lease.Decision(record, lease.Granted(record.expires_at_ms, record.fencing_token, "acquired"))
    return decision


def _renewal_brings_back(record: lease.LockRecord | None, command: lease.Renew, now_ms: int) -> lease.Decision:
    if isinstance(record, lease.Free):
        return _acquire(None, lease.Acquire(command.owner_digest, command.ttl_seconds), now_ms)
    return _renew(record, command, now_ms)


def _anybody_releases(record: lease.LockRecord | None, command: lease.Release, now_ms: int) -> lease.Decision:
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


RULES: list[tuple[str, str, Any, set[str]]] = [
    (
        "the fencing token does not rise",
        "next_fencing_token",
        _token_stands,
        {
            "the fencing token rises over a release",
            "the fencing token rises over a force release",
            "a lower fencing token is refused",
            "a takeover after the grace",
        },
    ),
    ("there is no grace", "GRACE_MS", 0, {"no takeover in the grace"}),
    ("there is no margin", "MARGIN_MS", 0, {"no extension in the margin"}),
    ("the grace does not end", "GRACE_MS", 60_000, {"a takeover after the grace"}),
    ("all win", "acquire", _all_win, {"of several who ask, one wins", "no takeover in the grace"}),
    ("retired tokens come back", "_is_retired", lambda *_: False, {"a retired token stays out"}),
    (
        "a late renewal revives",
        "renew",
        _renewal_brings_back,
        {"a late renewal creates nothing", "the fencing token rises over a force release"},
    ),
    (
        "anybody may release",
        "release",
        _anybody_releases,
        {"only the owner renews and releases", "a takeover after the grace"},
    ),
    ("a renewal never shortens", "_extended", _never_shorter, {"a renewal sets the expiry anew"}),
    ("a repeat is a new lease", "_extended", _repeat_is_new, {"the same token again is the same lease"}),
]


@pytest.mark.parametrize(("name", "found_by"), [(r[1], r[3]) for r in RULES], ids=[r[0] for r in RULES])
async def test_a_broken_rule_is_found_by_its_checks(
    name: str, found_by: set[str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-18."""
    broken = next(rule for rule in RULES if rule[0] == request.node.callspec.id)
    monkeypatch.setattr(lease, name, broken[2])
    assert await _found() == found_by


# --- answers broken ---------------------------------------------------------------------------------------


def _method(went: Went) -> str:
    method: str = went.scope["method"]
    return method


def _of_lease(went: Went) -> bool:
    return bool(went.scope["path"].endswith("/lease"))


def _free_says_more(went: Went) -> Went:
    return went._replace(body=went.body.replace(b"false}", b'false,"expires_at":null}'))


def _no_quota(went: Went) -> Went:
    return went._replace(headers=[one for one in went.headers if not QUOTA.fullmatch(one[0])])


def _quota_stands(went: Went) -> Went:
    stands = (b"x-ratelimit-remaining", b"600")
    return went._replace(headers=[stands if one[0] == stands[0] else one for one in went.headers])


def _own_request_id(went: Went) -> Went:
    own = (b"x-volcano-request-id", str(uuid.uuid4()).encode())
    return went._replace(headers=[own if one[0] == own[0] else one for one in went.headers])


def _other_code(went: Went) -> Went:
    return went._replace(body=went.body.replace(b'"invalid_ttl"', b'"invalid_request"'))


def _other_status(went: Went) -> Went:
    return went._replace(status=422 if went.status == 400 else went.status)


def _unknown_is_forbidden(went: Went) -> Went:
    return went._replace(status=403 if went.status == 401 else went.status)


def _anon_is_unknown(went: Went) -> Went:
    return went._replace(status=401 if went.status == 403 else went.status)


def _fails_for_escapes(went: Went) -> Went:
    return went._replace(status=500) if b"%3A" in went.scope["raw_path"] else went


def _repeats_the_token(went: Went) -> Went:
    token = dict(went.scope["headers"]).get(b"x-volcano-lock-token", b"")
    told = json.dumps({"error": f"what is {token.decode()}?", "code": "invalid_lock_token"}).encode()
    return went._replace(body=told) if b'"invalid_lock_token"' in went.body else went


def _no_allow(went: Went) -> Went:
    return went._replace(headers=[one for one in went.headers if one[0] != b"allow"])


def _labels_refused(went: Went) -> Went:
    labelled = dict(went.scope["headers"]).get(b"x-volcano-lock-holder") == b"a/1"
    return went._replace(status=400, body=b'{"error": "no", "code": "invalid_holder"}') if labelled else went


def _takes_anything(went: Went) -> Went:
    return went._replace(status=201, body=b"{}") if b'"invalid_request"' in went.body else went


def _release_is_forgotten(went: Went) -> Went:
    refused = _method(went) == "DELETE" and _of_lease(went) and went.status == 204
    return went._replace(status=409, body=b'{"error": "no", "code": "lock_ownership_lost"}') if refused else went


ANSWERS: list[tuple[Callable[[Went], Went], set[str]]] = [
    (_free_says_more, {"what a read says"}),
    (_no_quota, {"quota headers"}),
    (_quota_stands, {"quota headers"}),
    # The client believes no answer to another request (SDK-2), so its blocks do not come to their end either.
    (_own_request_id, {"request ids are echoed and made", "released after success", "released after failure"}),
    (_other_code, {"refusals have codes", "input is strict"}),
    (_other_status, {"wrong input is refused", "refusals have codes", "input is strict", "holder labels"}),
    (_unknown_is_forbidden, {"no credential, no answer", "another kind of credential"}),
    (_anon_is_unknown, {"another kind of credential"}),
    (_fails_for_escapes, {"a key is decoded once"}),
    (_repeats_the_token, {"no secret comes back"}),
    (_no_allow, {"addresses and methods"}),
    (_labels_refused, {"holder labels"}),
    (_takes_anything, {"input is strict"}),
    (
        _release_is_forgotten,
        {
            "a release frees the lock",
            "a late renewal creates nothing",
            "a release may be repeated",
            "a retired token stays out",
            "the fencing token rises over a release",
            "what a read says",
            "released after success",
        },
    ),
]


@pytest.mark.parametrize(("change", "found_by"), ANSWERS, ids=[one[0].__name__.strip("_") for one in ANSWERS])
async def test_a_broken_answer_is_found_by_its_checks(
    change: Callable[[Went], Went], found_by: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-18."""
    monkeypatch.setattr(server, "App", _app_with(change))
    assert await _found() == found_by


async def test_a_failing_server_is_told_and_the_other_checks_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-19."""
    monkeypatch.setattr(server, "App", _app_with(_fails_for_escapes))
    failed = [result for result in await _all() if not result.holds]
    assert [result.saw for result in failed] == ["not judged: GET was answered 500"]


async def test_a_spent_quota_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-19: nothing is known then, and nothing is said to hold."""
    monkeypatch.setattr(server, "App", _app_with(lambda went: went._replace(status=429)))
    results = await _all()
    assert not any(result.holds for result in results)
    assert {result.saw for result in results if "quota" in result.saw}


async def test_answers_too_slow_to_tell_are_not_taken_for_a_kept_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-19: a renewal refused after the expiry says nothing of the margin before it."""
    clocks = _Clocks()

    def slow(went: Went) -> Went:
        clocks.checks.jump(1.0)
        return went

    monkeypatch.setattr(server, "App", _app_with(slow))
    results = await _all(clocks, [check for check in CHECKS if check.name.startswith("no ") and check.waits])
    told = [result.saw.partition(" (")[0] for result in results]
    assert told == ["not judged: answers came too late to tell"] * 2


async def test_locks_are_freed_also_by_checks_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-19."""
    monkeypatch.setattr(lease, "next_fencing_token", _token_stands)
    clocks = _Clocks()
    with running_server(clock=clocks.server) as running:
        async with Wire(running.url, running.service_key, clocks.checks) as wire:
            for number, check in enumerate(CHECKS):
                if check.name not in IN_BACKGROUND:
                    site = Site(wire, TTL_SECONDS, _options(running, clocks.checks), f"{KEY_PREFIX}:{number}")
                    await run_all(site, [check], lambda _result: None)
                    assert (await wire.read(f"{KEY_PREFIX}:{number}:0")).json == {"held": False}, check.name


@pytest.mark.real_time
async def test_locks_are_freed_also_by_checks_that_are_interrupted(caplog: pytest.LogCaptureFixture) -> None:
    """CLI-19: none goes on when the run has ended, with nothing left to reach the server by."""
    holding: list[str] = []

    async def hang(room: Room) -> str:
        await room.hold()
        holding.append(room.key)
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5_000 * holding.index(room.key)):  # some need longer than others to end
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
        async with Wire(running.url, running.service_key, SystemClock()) as wire:
            assert [(await wire.read(key)).json for key in holding] == [{"held": False}] * 4
    assert caplog.text == ""


@pytest.mark.real_time
async def test_a_loss_that_is_never_told_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-18: a server that renews whatever it is asked to, so that who was forced out goes on."""

    def renewed(record: lease.LockRecord | None, command: lease.Renew, now_ms: int) -> lease.Decision:
        expires_at_ms = now_ms + command.ttl_seconds * 1_000
        return lease.Decision(record, lease.Granted(expires_at_ms, 1, "renewed"))

    monkeypatch.setattr(lease, "renew", renewed)
    checks = [check for check in CHECKS if check.name in IN_BACKGROUND]
    with running_server() as running:
        results = await _run(running, SystemClock(), checks)
    assert [result.saw for result in results] == [f"forced out, the block was not told within its {TTL_SECONDS} s"] * 2


# --- running ----------------------------------------------------------------------------------------------


class _Clocks:
    """The server's and the checks', moved together."""

    def __init__(self) -> None:
        self.server = ServerClock()
        self.checks = ManualClock(on_move=self._moved)

    def _moved(self, seconds: float) -> None:
        self.server.advance(round(seconds * 1_000))


def _app_with(change: Callable[[Went], Went]) -> type[App]:
    """The application with every answer to lock requests changed."""

    class Changed(App):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            started: Message = {}

            async def changed(message: Message) -> None:
                if message["type"] == "http.response.start":
                    started.update(message)
                    return
                went = Went(scope, started["status"], list(started["headers"]), message.get("body", b""))
                went = change(went)
                length = (b"content-length", str(len(went.body)).encode())
                headers = [length if name == length[0] else (name, value) for name, value in went.headers]
                if went.status != 204 and length not in headers:
                    headers.append(length)
                await send({**started, "status": went.status, "headers": headers})
                await send({**message, "body": went.body})

            await super().__call__(scope, receive, changed)

    return Changed


async def _found() -> set[str]:
    """The names of the checks that fail."""
    return {result.check.name for result in await _all() if not result.holds}


async def _all(clocks: _Clocks | None = None, checks: list[Check] | None = None) -> list[Result]:
    clocks = clocks or _Clocks()
    chosen = checks or [check for check in CHECKS if check.name not in IN_BACKGROUND]
    with running_server(clock=clocks.server) as running:
        # One by one: the checks move the one clock there is.
        return [result for check in chosen for result in await _run(running, clocks.checks, [check])]


async def _run(running: RunningServer, clock: Clock, checks: list[Check]) -> list[Result]:
    async with Wire(running.url, running.service_key, clock) as wire:
        site = Site(wire, TTL_SECONDS, _options(running, clock), new_run_name())
        return await run_all(site, checks, lambda _result: None)


def _options(running: RunningServer, clock: Clock) -> dict[str, Any]:
    return {"api_url": running.url, "service_key": running.service_key, "clock": clock}
