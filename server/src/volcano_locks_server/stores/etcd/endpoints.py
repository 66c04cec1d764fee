"""Sends transactions to the cluster: to one member until it fails, then to the next.

A transaction that only reads may be repeated on another member. A write is sent once: if its response is
missing, it may have taken effect, so the call raises `StoreUnavailableError` and is never repeated silently. It goes to
another member only if it cannot have taken effect: there was no connection yet, or the member refused it before
proposing it. `no leader` is such a refusal, so an election delays a batch instead of failing it.

All members must belong to one cluster (OPS-8). If the URL names several, a member is asked for its cluster after each
change of the connection and before a transaction. If it differs from the cluster known so far, every call is refused
from then on. So it is if etcd's revision is lower than one that an earlier response had: a snapshot or an old data
directory was restored under running nodes, and acknowledged leases are missing.

A call takes at most CALL_SECONDS_MAX, a transaction with all its attempts at most TXN_SECONDS_MAX.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # grpc reads this on import; by default it logs to stderr

import grpc

from ...ports.lock_store import StoreCounts
from ...rules.errors import StoreUnavailableError
from . import transactions
from .address import EtcdAddress
from .faults import (
    LATE,
    TWO_CLUSTERS,
    UNREACHABLE,
    UNREACHABLE_CODE,
    WENT_BACK,
    fault_of,
    is_auth_off,
    is_auth_on,
    is_permanent,
    is_stale_token,
    was_not_proposed,
)
from .transactions import Compare, Delete, Get, MemberStatus, Op, Put, TransactionResult

CONNECT_SECONDS_MAX: Final = 1.0
CALL_SECONDS_MAX: Final = 2.0
TXN_SECONDS_MAX: Final = 5.0
PAUSE_SECONDS: Final = 0.05
RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024

_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", RESPONSE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
)
_HAS_LEADER: Final = ("hasleader", "true")  # a member without a leader refuses at once


class _NotAppliedError(Exception):
    """The transaction cannot have taken effect; `args` are the cause code and the message."""


class ConnectionChangedError(Exception):
    """The connection to the cluster is no longer the same; the transaction was not sent."""


class Endpoints:
    """Every member of `address`, connected on first use. Created and used in one event loop."""

    def __init__(self, address: EtcdAddress) -> None:
        self._address: Final = address
        credentials = _credentials(address)
        self._channels: Final = [_channel(endpoint, credentials) for endpoint in address.endpoints]
        self._current = 0
        self._token: str | None = None
        self._verified: grpc.aio.Channel | None = None  # the member that was last asked for its cluster
        self._cluster_id: int | None = None
        self._newest_revision = 0
        self.lacks_authentication = False
        """Whether etcd takes calls without a token, although the URL has a user."""
        self.refusal: StoreUnavailableError | None = None
        """If set, every call raises this error."""
        self.counts: Final = StoreCounts()
        self.connection_changes = 0
        """How often the connection was lost or changed: a new connection may lead to a restored cluster."""

    async def read(self, *ops: Get) -> TransactionResult:
        """The results of the reads at one revision; linearizable, except for stale reads."""
        return await self.write((), ops)

    async def write(
        self,
        compares: Iterable[Compare],
        then: Iterable[Op],
        otherwise: Iterable[Get] = (),
        *,
        if_unchanged_since: int | None = None,
    ) -> TransactionResult:
        """Run `then` if every comparison holds, else `otherwise`; the module's docstring says what an error means.

        Raises ConnectionChangedError, with nothing sent, if `connection_changes` is no longer `if_unchanged_since`.
        """
        ops = list(then)
        repeatable = not any(isinstance(op, Put | Delete) for op in ops)
        request = transactions.encode_transaction(compares, ops, otherwise)
        newest_before = self._newest_revision  # responses may arrive in any order
        result = transactions.decode_transaction(await self._send(request, repeatable, if_unchanged_since))
        if not any(isinstance(op, Get) and op.stale for op in ops):
            self._note_revision(result.revision, newest_before)
        return result

    @asynccontextmanager
    async def stream(self, method: str) -> AsyncIterator[grpc.aio.StreamStreamCall]:
        """A stream to the current member, which ends with the body.

        Raises StoreUnavailableError if it fails, or if the body raises TimeoutError. The next member becomes the
        current one.
        """
        self._refuse()
        channel = self._channels[self._current]
        try:
            await self._ensure_connected(channel)
            await self._authenticate(channel, CALL_SECONDS_MAX)
            call = channel.stream_stream(method)(metadata=self._metadata())
            try:
                yield call
            finally:
                call.cancel()
        except (_NotAppliedError, TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._fail_over(channel)
            if isinstance(error, grpc.aio.AioRpcError):
                raise StoreUnavailableError(*fault_of(error)) from error
            raise StoreUnavailableError(*(error.args if isinstance(error, _NotAppliedError) else LATE)) from error

    async def versions(self) -> dict[str, str]:
        """The version of each member by endpoint; empty for a member that does not respond."""
        versions = {}
        for channel, endpoint in zip(self._channels, self._address.endpoints, strict=True):
            status = await self._status_if_reachable(channel)
            versions[endpoint] = "" if status is None else status.version
        return versions

    async def refuse_two_clusters(self) -> None:
        """At the start: raise StoreUnavailableError if the reachable members belong to more than one cluster."""
        if len(self._channels) > 1:
            statuses = await asyncio.gather(*map(self._status_if_reachable, self._channels))
            if len({status.cluster_id for status in statuses if status is not None}) > 1:
                raise StoreUnavailableError(*TWO_CLUSTERS)

    async def close(self) -> None:
        """Close every connection."""
        for channel in self._channels:
            await channel.close()

    async def _send(self, request: bytes, repeatable: bool, if_unchanged_since: int | None) -> bytes:
        """The response of the first member that gives one. Raises as `write`."""
        self._refuse()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TXN_SECONDS_MAX
        failures = 0
        while True:
            channel = self._channels[self._current]
            try:
                await self._ensure_connected(channel)
                if if_unchanged_since not in (None, self.connection_changes):
                    raise ConnectionChangedError
                return await self._attempt(channel, transactions.TXN, request, deadline - loop.time(), repeatable)
            except _NotAppliedError as error:
                failures += 1
                self._fail_over(channel)
                tried_all = failures % len(self._channels) == 0
                unreachable = error.args[0] == UNREACHABLE_CODE
                if loop.time() + PAUSE_SECONDS >= deadline or (tried_all and unreachable):
                    fault = StoreUnavailableError(*error.args)
                    raise fault from error.__cause__
                self.counts.retries += 1
                if tried_all:
                    await asyncio.sleep(PAUSE_SECONDS)

    def _note_revision(self, revision: int, newest_before: int) -> None:
        """Raise StoreUnavailableError, and refuse all later calls, if etcd's state is older than it was."""
        if revision < newest_before:
            self.refusal = StoreUnavailableError(*WENT_BACK)
            raise self.refusal
        self._newest_revision = max(self._newest_revision, revision)

    async def _ensure_connected(self, channel: grpc.aio.Channel) -> None:
        if channel.get_state() is not grpc.ChannelConnectivity.READY:
            self.connection_changes += 1
            await _connect(channel)
            self._verified = None
        if self._verified is not channel and len(self._channels) > 1:
            await self._refuse_other_cluster(channel)

    async def _refuse_other_cluster(self, channel: grpc.aio.Channel) -> None:
        """Raise StoreUnavailableError, and refuse all later calls, if this member is of another cluster than before."""
        cluster_id = (await self._status(channel)).cluster_id
        if self._cluster_id not in (None, cluster_id):
            self.refusal = StoreUnavailableError(*TWO_CLUSTERS)
            self._refuse()
        self._cluster_id, self._verified = cluster_id, channel

    async def _status(self, channel: grpc.aio.Channel) -> MemberStatus:
        """The status of a member. Raises as `_attempt`."""
        response = await self._attempt(channel, transactions.STATUS, b"", CALL_SECONDS_MAX, repeatable=True)
        return transactions.decode_status(response)

    async def _status_if_reachable(self, channel: grpc.aio.Channel) -> MemberStatus | None:
        try:
            await _connect(channel)
            return await self._status(channel)
        except (_NotAppliedError, StoreUnavailableError):
            return None

    async def _attempt(
        self, channel: grpc.aio.Channel, method: str, request: bytes, seconds: float, repeatable: bool
    ) -> bytes:
        """The member's response. Raises _NotAppliedError if another member may be tried, else StoreUnavailableError."""
        try:
            if self._token is None and not self.lacks_authentication:
                await self._authenticate(channel, seconds)
        except grpc.aio.AioRpcError as error:
            if is_permanent(error):
                raise StoreUnavailableError(*fault_of(error)) from error
            raise _NotAppliedError(*fault_of(error)) from error
        try:
            return await self._call(channel, method, request, seconds)
        except grpc.aio.AioRpcError as error:
            code_and_message = fault_of(error)
            if is_stale_token(error) or (self.lacks_authentication and is_auth_on(error)):
                self._token, self.lacks_authentication = None, False
                raise _NotAppliedError(*code_and_message) from error
            if is_permanent(error):
                raise StoreUnavailableError(*code_and_message) from error
            if repeatable or was_not_proposed(error):
                raise _NotAppliedError(*code_and_message) from error
            self._fail_over(channel)
            raise StoreUnavailableError(*code_and_message) from error

    async def _call(self, channel: grpc.aio.Channel, method: str, request: bytes, seconds: float) -> bytes:
        self.counts.round_trips += 1
        response: bytes = await channel.unary_unary(method)(
            request, timeout=max(PAUSE_SECONDS, min(seconds, CALL_SECONDS_MAX)), metadata=self._metadata()
        )
        return response

    def _metadata(self) -> list[tuple[str, str]]:
        return [_HAS_LEADER] if self._token is None else [_HAS_LEADER, ("token", self._token)]

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise StoreUnavailableError(self.refusal.cause_code, self.refusal.message)

    async def _authenticate(self, channel: grpc.aio.Channel, seconds: float) -> None:
        """Get a token, if the URL has a user and etcd asks for one."""
        if self._address.user is None:
            return
        request = transactions.encode_credentials(self._address.user, self._address.password or "")
        try:
            response = await self._call(channel, transactions.AUTHENTICATE, request, seconds)
        except grpc.aio.AioRpcError as error:
            self.lacks_authentication = is_auth_off(error)
            if not self.lacks_authentication:
                raise
        else:
            self._token, self.lacks_authentication = transactions.decode_access_token(response), False

    def _fail_over(self, channel: grpc.aio.Channel) -> None:
        """Use the next member, unless another call has failed over already."""
        if self._channels[self._current] is channel and len(self._channels) > 1:
            self._current = (self._current + 1) % len(self._channels)
            self.connection_changes += 1
            self.counts.connects += 1


def _credentials(address: EtcdAddress) -> grpc.ChannelCredentials | None:
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


async def _connect(channel: grpc.aio.Channel) -> None:
    """Return once the member is connected. Raises _NotAppliedError if it is not within CONNECT_SECONDS_MAX."""
    state = channel.get_state(try_to_connect=True)
    if state is grpc.ChannelConnectivity.READY:
        return
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            while state is not grpc.ChannelConnectivity.READY:
                if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                    raise _NotAppliedError(UNREACHABLE_CODE, UNREACHABLE)
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError as error:
        raise _NotAppliedError(UNREACHABLE_CODE, UNREACHABLE) from error
