"""Checks the health of an etcd store, and migrates its layout, without serving from it."""

import stat
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ...ports.clock import Clock
from ...rules.errors import StoreUnavailableError
from ..health_findings import HealthFinding, clock_finding, latency_finding, record_findings, schema_finding
from .address import EtcdAddress
from .endpoints import Endpoints
from .layout import LOADING, RESETTING, SCHEMA, Layout
from .member_causes import explained, member_cause
from .peer_clocks import PeerClocks
from .store import EtcdCluster
from .transactions import Delete, Get, Put

_NO_AUTHENTICATION: Final = HealthFinding(
    "access",
    "etcd's authentication is off, so every client that reaches it may change this store",
    "etcdctl auth enable; nodes go on, with the user in the URL",
)


async def migrate(url: str, clock: Clock) -> tuple[int, int]:
    """The layout's version before (0 if there was none) and after. Raises ValueError and StoreUnavailableError."""
    address = EtcdAddress.parse(url)
    endpoints = Endpoints(address)
    try:
        found = (await endpoints.read(Get(Layout(address.prefix).schema))).one(0)
    except StoreUnavailableError as error:
        raise await explained(error, address) from error
    finally:
        await endpoints.close()
    await (await EtcdCluster.open(url, clock)).close()
    return 0 if found is None else SCHEMA, SCHEMA


async def check_health(url: str, clock: Clock) -> Sequence[HealthFinding]:
    """Check members, layout, write latency, and this machine's clock against those of serving nodes."""
    address = EtcdAddress.parse(url)
    cluster, layout = EtcdCluster(address, clock), Layout(address.prefix)
    endpoints = cluster.endpoints
    findings = [*_certificate_key(address.certificate_key)]
    try:
        for endpoint, version in (await endpoints.versions()).items():
            findings.append(_member(endpoint, version) if version else await _silent_member(address, endpoint))
        await endpoints.refuse_two_clusters()
        findings.append(_schema(found.value if (found := (await endpoints.read(Get(layout.schema))).one(0)) else b"0"))
        if endpoints.lacks_authentication:
            findings.append(_NO_AUTHENTICATION)
        write = partial(endpoints.write, (), [Put(layout.probe, b"")])
        findings.append(await latency_finding(write, "check the members' disks and the network between them"))
        await endpoints.write((), [Delete(layout.probe)])
        findings += await record_findings(cluster.snapshot.damaged())
        offsets_ms = await PeerClocks(clock, endpoints, layout).offsets_ms()
    except StoreUnavailableError as error:
        message = (await explained(error, address)).message
        return [*findings, HealthFinding("cluster", f"the store cannot be used: {error.cause_code}", message)]
    finally:
        await endpoints.close()
    if not offsets_ms:
        return [*findings, HealthFinding("clock", "no node is serving, so there is no clock to compare with")]
    consequence = "a node whose clock deviates by more than a second refuses to serve"
    return [*findings, *(clock_finding(-offset_ms, "that of a serving node", consequence) for offset_ms in offsets_ms)]


def _certificate_key(path: Path | None) -> Sequence[HealthFinding]:
    """Whether other users can read the private key of the client certificate, if there is one."""
    if path is None:
        return []
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return [HealthFinding("permissions", f"other users can read the certificate's key {path}", f"chmod 600 {path}")]
    return [HealthFinding("permissions", f"only its owner can read the certificate's key {path}")]


def _member(endpoint: str, version: str) -> HealthFinding:
    return HealthFinding("member", f"{endpoint} responds, etcd {version}")


async def _silent_member(address: EtcdAddress, endpoint: str) -> HealthFinding:
    found = f"{endpoint} does not respond: {await member_cause(address, endpoint)}"
    return HealthFinding("member", found, "check that it runs, its address in the URL, TLS and the password")


def _schema(value: bytes) -> HealthFinding:
    if value == RESETTING:
        return HealthFinding("schema", "a reset of the clock is not finished", "run volcano-locks reset-clock again")
    if value == LOADING:
        return HealthFinding("schema", "a copy to this prefix is incomplete", "copy again, or name another prefix")
    if value.isdigit() and int(value) <= SCHEMA:
        return schema_finding(int(value), SCHEMA)
    return HealthFinding(
        "schema", "another release wrote this layout", "use a newer release, or name another prefix in the URL"
    )
