"""Examining an etcd store, and taking a prefix for it, without serving from it."""

import stat
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ...ports.clock import Clock
from ...rules.errors import StoreUnavailableError
from ..health_findings import Finding, latency
from ..health_findings import clock as clock_finding
from ..health_findings import schema as schema_finding
from .address import Address
from .clock_skew import Clocks
from .endpoints import Members
from .layout import LOADING, SCHEMA, Layout
from .store import EtcdCluster
from .transactions import Delete, Put, Read


async def migrate(url: str, clock: Clock) -> tuple[int, int]:
    """The layout's version before (0: there was none) and after. Raises ValueError and StoreUnavailableError."""
    address = Address.parse(url)
    members = Members(address)
    try:
        found = (await members.read(Read(Layout(address.prefix).schema))).one(0)
    finally:
        await members.close()
    await (await EtcdCluster.open(url, clock)).close()
    return 0 if found is None else SCHEMA, SCHEMA


async def examine(url: str, clock: Clock) -> Sequence[Finding]:
    """The members, the layout, how long a write takes, and this machine's clock beside those of nodes that serve."""
    address = Address.parse(url)
    members = Members(address)
    try:
        return await _examine(address, members, clock)
    finally:
        await members.close()


async def _examine(address: Address, members: Members, clock: Clock) -> Sequence[Finding]:
    findings = [
        *_certificate_key(address.certificate_key),
        *(_member(endpoint, version) for endpoint, version in (await members.versions()).items()),
    ]
    layout = Layout(address.prefix)
    try:
        findings.append(_schema(found.value if (found := (await members.read(Read(layout.schema))).one(0)) else b"0"))
        write = partial(members.write, (), [Put(layout.probe, b"")])
        findings.append(await latency(write, "look at the members' disks and at the network between them"))
        await members.write((), [Delete(layout.probe)])
        offsets_ms = await Clocks(clock, members, layout).offsets_ms()
    except StoreUnavailableError as error:
        return [*findings, Finding("cluster", f"it cannot be used: {error.cause_code}", error.message)]
    if not offsets_ms:
        return [*findings, Finding("clock", "no node serves now whose clock could be compared")]
    matters = "a node whose clock stands out by more than a second serves nothing"
    return [*findings, *(clock_finding(-offset_ms, "that of a node that serves", matters) for offset_ms in offsets_ms)]


def _certificate_key(path: Path | None) -> Sequence[Finding]:
    """Who may read our certificate's key, where there is one."""
    if path is None:
        return []
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return [Finding("permissions", f"others may open the certificate's key {path}", f"chmod 600 {path}")]
    return [Finding("permissions", f"the certificate's key {path} is its owner's alone")]


def _member(endpoint: str, version: str) -> Finding:
    if version:
        return Finding("member", f"{endpoint} answers, etcd {version}")
    return Finding(
        "member", f"{endpoint} does not answer", "see that it runs, its address in the URL, TLS and password"
    )


def _schema(value: bytes) -> Finding:
    if value == LOADING:
        return Finding("schema", "a copy to here did not come to its end", "copy again, or name another prefix")
    if value.isdigit() and int(value) <= SCHEMA:
        return schema_finding(int(value), SCHEMA)
    return Finding("schema", "it is not this release's", "use a newer release, or name another prefix in the URL")
