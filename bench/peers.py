"""The peers: etcd through its own HTTP gateway, and Redis that syncs every write. Each durable, each alone.

A peer is a context manager over a fresh folder; it yields a function that loads it for so many seconds. After
each round the peer is asked how many keys it holds, so that a load which changed nothing is not taken for work.
"""

import base64
import csv
import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from . import wrk
from .processes import free_port, program, run, running, wait_until
from .wrk import CONNECTIONS, SCRIPTS, Measured

Load = Callable[[float], Measured]

REDIS_RANDOM_MAX: Final = 2_000_000_000
REDIS_CALIBRATION: Final = 20_000
REDIS_TTL_MS: Final = 600_000


class Peer(NamedTuple):
    """A running peer: where its clients reach it, and which process."""

    port: int
    pid: int


@contextmanager
def etcd_serving(folder: Path) -> Iterator[Peer]:
    """One etcd member with its defaults."""
    port, peer_port, log = free_port(), free_port(), folder / "etcd.log"
    clients, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    command = [
        *(program("etcd", "etcd-server"), "--name", "bench", "--data-dir", str(folder / "etcd")),
        *("--listen-client-urls", clients, "--advertise-client-urls", clients),
        *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
        *("--initial-cluster", f"bench={peers}", "--logger", "zap", "--log-level", "error"),
    ]
    with running(command, log=log, environment={"ETCDCTL_API": "3"}) as process:
        wait_until(lambda: _etcd_is_healthy(port), process, log)
        yield Peer(port, process.pid)


@contextmanager
def etcd(folder: Path) -> Iterator[Load]:
    """That member, as a client without gRPC would reach it."""
    rounds = 0
    held_before = 0

    def load(seconds: float) -> Measured:
        nonlocal rounds, held_before
        rounds += 1
        prefix = base64.b64encode(b"lock/%03d/" % rounds).decode()
        measured = wrk.load(f"http://127.0.0.1:{port}", "etcd_create", prefix, seconds=seconds)
        held = _etcd_keys(port)
        measured = checked(measured, held - held_before)
        held_before = held
        return measured

    with etcd_serving(folder) as peer:
        port = peer.port
        yield load


@contextmanager
def redis_serving(folder: Path) -> Iterator[Peer]:
    """One Redis that appends every write to its file and syncs it before it answers."""
    port, log = free_port(), folder / "redis.log"
    command = [
        *(program("redis-server", "redis-server"), "--port", str(port), "--bind", "127.0.0.1"),
        *("--dir", str(folder), "--save", "", "--appendonly", "yes", "--appendfsync", "always"),
        *("--auto-aof-rewrite-percentage", "0"),
    ]
    with running(command, log=log) as process:
        wait_until(lambda: _listens(port) and _ask_redis(port, "PING") == "PONG", process, log)
        yield Peer(port, process.pid)


@contextmanager
def redis(folder: Path) -> Iterator[Load]:
    """That Redis, loaded with fenced acquires."""
    per_second = 0.0

    def fenced_acquires(count: int) -> Measured:
        token_before = int(_ask_redis(port, "GET", "fencing-token") or 0)
        printed = run(
            [
                *(program("redis-benchmark", "redis-tools"), "-p", str(port), "-c", str(CONNECTIONS)),
                *("-n", str(count), "-r", str(REDIS_RANDOM_MAX), "--precision", "3", "--csv"),
                *("EVALSHA", script_sha, "2", "lock:__rand_int__", "fencing-token"),
                *("5f0c6c1e-6a3f-4c1e-9b7e-000000000001", str(REDIS_TTL_MS)),
            ]
        )
        row = next(csv.DictReader(printed[printed.index('"test"') :].splitlines()))
        measured = Measured(
            operations=count,
            seconds=count / float(row["rps"]),
            p50_ms=float(row["p50_latency_ms"]),
            p99_ms=float(row["p99_latency_ms"]),
        )
        return checked(measured, int(_ask_redis(port, "GET", "fencing-token") or 0) - token_before)

    def load(seconds: float) -> Measured:
        nonlocal per_second
        per_second = per_second or fenced_acquires(REDIS_CALIBRATION).per_second
        measured = fenced_acquires(max(1_000, round(per_second * seconds)))
        per_second = measured.per_second
        return measured

    with redis_serving(folder) as peer:
        port = peer.port
        script_sha = _ask_redis(port, "SCRIPT", "LOAD", (SCRIPTS / "fenced_acquire.lua").read_text())
        yield load


def _ask_redis(port: int, *words: str) -> str:
    return run([program("redis-cli", "redis-tools"), "-p", str(port), *words]).strip()


def checked(measured: Measured, changed: int) -> Measured:
    """A round in which hardly a thousandth of the operations changed nothing; drawn keys may meet by chance."""
    if changed >= measured.operations * 0.999:
        return measured
    return measured._replace(problem=f"{measured.operations} operations changed only {changed} keys")


def _etcd_is_healthy(port: int) -> bool:
    try:
        return bool(_etcd_call(port, "GET", "/health", "").get("health") == "true")
    except OSError:
        return False


def _etcd_keys(port: int) -> int:
    everything = base64.b64encode(b"\0").decode()
    body = json.dumps({"key": everything, "range_end": everything, "count_only": True})
    return int(str(_etcd_call(port, "POST", "/v3/kv/range", body).get("count", "0")))


def _etcd_call(port: int, method: str, path: str, body: str) -> dict[str, object]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body)
        answer: dict[str, object] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


def _listens(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.connect()
    except OSError:
        return False
    connection.close()
    return True
