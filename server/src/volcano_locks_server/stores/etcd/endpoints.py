"""The cluster's members, one of them in use: transactions go there until it fails, then to the next one.

A transaction that only reads may be repeated elsewhere. One that writes is sent once: where its answer is missing,
nobody knows whether it took effect, so it ends in `StoreUnavailableError` and is never repeated in silence. It is
sent elsewhere only when it cannot have taken effect: the connection was not there yet, or the member said that it
did not pass it on. `no leader` is such an answer, so that an election delays a batch instead of failing it.

No call lasts longer than CALL_SECONDS_MAX, and no transaction with all its attempts longer than TXN_SECONDS_MAX.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it would write to stderr by itself, and reads this when imported

import grpc

from ...ports.lock_store import StoreCounts
from ...rules.errors import StoreUnavailableError
from . import transactions
from .address import Address
from .transactions import Answer, Delete, Guard, Op, Put, Read

CONNECT_SECONDS_MAX: Final = 1.0
CALL_SECONDS_MAX: Final = 2.0
TXN_SECONDS_MAX: Final = 5.0
PAUSE_SECONDS: Final = 0.05
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024

_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
)
_HAS_LEADER: Final = ("hasleader", "true")  # a member that knows no leader says so instead of waiting for one
_Code: Final = grpc.StatusCode


class _NotSentError(Exception):
    """The transaction cannot have taken effect; `args` are the fault's cause code and its message."""


class BrokenWayError(Exception):
    """The way to the cluster is not the one it was: nothing was sent."""


class Members:
    """Every member of `address`, connected when first needed. Made and used in one event loop."""

    def __init__(self, address: Address) -> None:
        self._address: Final = address
        credentials = _credentials(address)
        self._channels: Final = [_channel(endpoint, credentials) for endpoint in address.endpoints]
        self._current = 0
        self._token: str | None = None
        self.refusal: StoreUnavailableError | None = None
        """What everybody is told instead of being served; None while all is well."""
        self.counts: Final = StoreCounts()
        self.breaks = 0
        """How often there was no way to the cluster, or another one: what answers next may have been restored."""

    async def read(self, *ops: Read) -> Answer:
        """What the reads find, all at one moment: linearizable, but for those that may be stale."""
        return transactions.txn_answer(
            await self._send(transactions.TXN, transactions.txn((), ops, ()), repeatable=True)
        )

    async def write(
        self,
        guards: Iterable[Guard],
        then: Iterable[Op],
        otherwise: Iterable[Read] = (),
        *,
        unbroken_since: int | None = None,
    ) -> Answer:
        """Do `then` if every guard holds, else read `otherwise`; see the module's head for what an error means.

        BrokenWayError, with nothing done, where the way there broke after it had done so `unbroken_since` times.
        """
        ops = list(then)
        repeatable = not any(isinstance(op, Put | Delete) for op in ops)
        wire = transactions.txn(guards, ops, otherwise)
        return transactions.txn_answer(await self._send(transactions.TXN, wire, repeatable, unbroken_since))

    @asynccontextmanager
    async def stream(self, method: str) -> AsyncIterator[grpc.aio.StreamStreamCall]:
        """A stream to the member in use, which ends with the body.

        Raises StoreUnavailableError where it fails; so it does for a TimeoutError of the body, who waited in vain.
        In both cases another member is used next.
        """
        self._refuse()
        channel = self._channels[self._current]
        try:
            await self._reach(channel)
            if self._address.user is not None:
                await self._authenticate(channel, CALL_SECONDS_MAX)
            call = channel.stream_stream(method)(metadata=self._metadata())
            try:
                yield call
            finally:
                call.cancel()
        except (_NotSentError, TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._turn(channel)
            if isinstance(error, grpc.aio.AioRpcError):
                raise StoreUnavailableError(*_fault(error)) from error
            raise StoreUnavailableError(*(error.args if isinstance(error, _NotSentError) else _LATE)) from error

    async def versions(self) -> dict[str, str]:
        """The version of each member that answers, by its endpoint; empty text for one that does not."""
        told = {}
        for channel, endpoint in zip(self._channels, self._address.endpoints, strict=True):
            try:
                await _connected(channel)
                answer = await self._attempt(channel, transactions.STATUS, b"", CALL_SECONDS_MAX, repeatable=True)
                told[endpoint] = transactions.version_answer(answer)
            except (_NotSentError, StoreUnavailableError):
                told[endpoint] = ""
        return told

    async def close(self) -> None:
        """Let go of every connection."""
        for channel in self._channels:
            await channel.close()

    async def _send(self, method: str, wire: bytes, repeatable: bool, unbroken_since: int | None = None) -> bytes:
        """One answer, from whichever member gives it. Raises StoreUnavailableError, and BrokenWayError as `write`."""
        self._refuse()
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + TXN_SECONDS_MAX
        failures = 0
        while True:
            channel = self._channels[self._current]
            try:
                await self._reach(channel)
                if unbroken_since not in (None, self.breaks):
                    raise BrokenWayError
                return await self._attempt(channel, method, wire, gives_up_at - loop.time(), repeatable)
            except _NotSentError as error:
                failures += 1
                self._turn(channel)
                everywhere = failures % len(self._channels) == 0
                unreachable = error.args[0] == "etcd_unreachable"
                if loop.time() + PAUSE_SECONDS >= gives_up_at or (everywhere and unreachable):
                    fault = StoreUnavailableError(*error.args)
                    raise fault from error.__cause__
                self.counts.retries += 1
                if everywhere:
                    await asyncio.sleep(PAUSE_SECONDS)

    async def _reach(self, channel: grpc.aio.Channel) -> None:
        if channel.get_state() is not grpc.ChannelConnectivity.READY:
            self.breaks += 1
            await _connected(channel)

    async def _attempt(
        self, channel: grpc.aio.Channel, method: str, wire: bytes, seconds: float, repeatable: bool
    ) -> bytes:
        """The member's answer, _NotSentError if another may be asked, else StoreUnavailableError."""
        try:
            if self._address.user is not None and self._token is None:
                await self._authenticate(channel, seconds)
        except grpc.aio.AioRpcError as error:
            if _cannot_be_helped(error):
                raise StoreUnavailableError(*_fault(error)) from error
            raise _NotSentError(*_fault(error)) from error
        try:
            return await self._call(channel, method, wire, seconds)
        except grpc.aio.AioRpcError as error:
            code_and_message = _fault(error)
            if _is_stale_token(error):
                self._token = None
                raise _NotSentError(*code_and_message) from error
            if _cannot_be_helped(error):
                raise StoreUnavailableError(*code_and_message) from error
            if repeatable or _was_not_passed_on(error):
                raise _NotSentError(*code_and_message) from error
            self._turn(channel)
            raise StoreUnavailableError(*code_and_message) from error

    async def _call(self, channel: grpc.aio.Channel, method: str, wire: bytes, seconds: float) -> bytes:
        self.counts.round_trips += 1
        answer: bytes = await channel.unary_unary(method)(
            wire, timeout=max(PAUSE_SECONDS, min(seconds, CALL_SECONDS_MAX)), metadata=self._metadata()
        )
        return answer

    def _metadata(self) -> list[tuple[str, str]]:
        return [_HAS_LEADER] if self._token is None else [_HAS_LEADER, ("token", self._token)]

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise StoreUnavailableError(self.refusal.cause_code, self.refusal.message)

    async def _authenticate(self, channel: grpc.aio.Channel, seconds: float) -> None:
        assert self._address.user is not None
        wire = transactions.authenticate(self._address.user, self._address.password or "")
        answer = await self._call(channel, transactions.AUTHENTICATE, wire, seconds)
        self._token = transactions.authenticate_answer(answer)

    def _turn(self, channel: grpc.aio.Channel) -> None:
        """Use the next member, unless somebody else has turned already."""
        if self._channels[self._current] is channel and len(self._channels) > 1:
            self._current = (self._current + 1) % len(self._channels)
            self.breaks += 1
            self.counts.connects += 1


def _credentials(address: Address) -> grpc.ChannelCredentials | None:
    if not address.tls:
        return None
    try:
        authority, key, certificate = (
            None if path is None else path.read_bytes()
            for path in (address.authority, address.certificate_key, address.certificate)
        )
    except OSError as error:
        raise ValueError(
            f"store etcd:// names a file that cannot be read: {error.filename}: {error.strerror}"
        ) from None
    return grpc.ssl_channel_credentials(authority, key, certificate)


def _channel(endpoint: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
    return grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)


async def _connected(channel: grpc.aio.Channel) -> None:
    """Return once the member is connected; _NotSentError if it cannot be, or not within CONNECT_SECONDS_MAX."""
    state = channel.get_state(try_to_connect=True)
    if state is grpc.ChannelConnectivity.READY:
        return
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            while state is not grpc.ChannelConnectivity.READY:
                if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                    raise _NotSentError("etcd_unreachable", UNREACHABLE)
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError as error:
        raise _NotSentError("etcd_unreachable", UNREACHABLE) from error


UNREACHABLE: Final = "no member of the etcd cluster can be reached: check that it runs, its address, and its TLS"


_CREDENTIALS: Final = ("etcd_credentials", "etcd does not take this user and password: check the store's URL")
_LATE: Final = ("etcd_late", "etcd did not answer in time")
_FAULTS: Final = (  # of what etcd answers: its code, a part of its text, and our own words for it; the first that fits
    (_Code.DEADLINE_EXCEEDED, "", _LATE),
    (_Code.UNAUTHENTICATED, "", _CREDENTIALS),
    (_Code.INVALID_ARGUMENT, "authentication failed", _CREDENTIALS),
    (_Code.INVALID_ARGUMENT, "user name is empty", ("etcd_credentials", "etcd asks for a user and a password")),
    (_Code.PERMISSION_DENIED, "", ("etcd_permission", "etcd's user may not read and write under the store's prefix")),
    (_Code.RESOURCE_EXHAUSTED, "space", ("etcd_full", "etcd's database is full: compact it, then disarm its alarm")),
    (_Code.UNAVAILABLE, "leader", ("etcd_no_leader", "etcd has no leader: it needs a majority of its members")),
    (_Code.UNAVAILABLE, "etcdserver", _LATE),
    (_Code.UNAVAILABLE, "", ("etcd_lost", "the connection to etcd was lost")),
)


def _fault(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    """What etcd said in our own words. Its own text stays in the cause: it may name keys."""
    details = error.details() or ""
    fits = (words for code, text, words in _FAULTS if error.code() is code and text in details)
    return next(fits, ("etcd_error", "etcd refused the transaction; the log says why"))


def _is_stale_token(error: grpc.aio.AioRpcError) -> bool:
    details = error.details() or ""
    return error.code() is _Code.UNAUTHENTICATED or "revision of auth store is old" in details


def _cannot_be_helped(error: grpc.aio.AioRpcError) -> bool:
    """Whether every member would say the same."""
    return error.code() in (_Code.PERMISSION_DENIED, _Code.INVALID_ARGUMENT, _Code.FAILED_PRECONDITION)


def _was_not_passed_on(error: grpc.aio.AioRpcError) -> bool:
    """Whether the member says that it refused the transaction before proposing it to the others."""
    details = error.details() or ""
    return details.endswith(("no leader", "too many requests"))
