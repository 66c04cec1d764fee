"""The baselines: etcd through its own HTTP gateway, and Redis with a sync for every write. Both are durable.

A baseline is a context manager over a fresh folder. It yields a function that loads the server for some seconds. After
each round the number of keys in the server is compared with the number of operations, so that a load that changed
nothing makes the round invalid.
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
from .wrk import CONNECTIONS, SCRIPTS, RoundResult

Load = Callable[[float], RoundResult]

REDIS_RANDOM_MAX: Final = 2_000_000_000
REDIS_CALIBRATION: Final = 20_000
REDIS_TTL_MS: Final = 600_000


class RunningBaseline(NamedTuple):
    """A running server: its client port and its process id."""

    port: int
    pid: int


@contextmanager
def running_etcd(folder: Path) -> Iterator[RunningBaseline]:
    """One etcd member with default settings."""
    port, member_port, log = free_port(), free_port(), folder / "etcd.log"
    client_url, member_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{member_port}"
    command = [
        *(program("etcd", "etcd-server"), "--name", "bench", "--data-dir", str(folder / "etcd")),
        *("--listen-client-urls", client_url, "--advertise-client-urls", client_url),
        *("--listen-peer-urls", member_url, "--initial-advertise-peer-urls", member_url),
        *("--initial-cluster", f"bench={member_url}", "--logger", "zap", "--log-level", "error"),
    ]
    with running(command, log=log, environment={"ETCDCTL_API": "3"}) as process:
        wait_until(lambda: _etcd_is_healthy(port), process, log)
        yield RunningBaseline(port, process.pid)


@contextmanager
def etcd_load(folder: Path) -> Iterator[Load]:
    """An etcd member, loaded through its HTTP gateway."""
    rounds = 0
    keys_before = 0

    def load(seconds: float) -> RoundResult:
        nonlocal rounds, keys_before
        rounds += 1
        prefix = base64.b64encode(b"lock/%03d/" % rounds).decode()
        result = wrk.load(f"http://127.0.0.1:{port}", "etcd_create", prefix, seconds=seconds)
        keys = _etcd_keys(port)
        result = checked(result, keys - keys_before)
        keys_before = keys
        return result

    with running_etcd(folder) as baseline:
        port = baseline.port
        yield load


@contextmanager
def running_redis(folder: Path) -> Iterator[RunningBaseline]:
    """One Redis that appends every write to its file and syncs the file before it responds."""
    port, log = free_port(), folder / "redis.log"
    command = [
        *(program("redis-server", "redis-server"), "--port", str(port), "--bind", "127.0.0.1"),
        *("--dir", str(folder), "--save", "", "--appendonly", "yes", "--appendfsync", "always"),
        *("--auto-aof-rewrite-percentage", "0"),
    ]
    with running(command, log=log) as process:
        wait_until(lambda: _accepts_connections(port) and _redis_cli(port, "PING") == "PONG", process, log)
        yield RunningBaseline(port, process.pid)


@contextmanager
def redis_load(folder: Path) -> Iterator[Load]:
    """A Redis server, loaded with fenced acquires."""
    per_second = 0.0

    def fenced_acquires(count: int) -> RoundResult:
        token_before = int(_redis_cli(port, "GET", "fencing-token") or 0)
        printed = run(
            [
                *(program("redis-benchmark", "redis-tools"), "-p", str(port), "-c", str(CONNECTIONS)),
                *("-n", str(count), "-r", str(REDIS_RANDOM_MAX), "--precision", "3", "--csv"),
                *("EVALSHA", script_sha, "2", "lock:__rand_int__", "fencing-token"),
                *("5f0c6c1e-6a3f-4c1e-9b7e-000000000001", str(REDIS_TTL_MS)),
            ]
        )
        row = next(csv.DictReader(printed[printed.index('"test"') :].splitlines()))
        result = RoundResult(
            operations=count,
            seconds=count / float(row["rps"]),
            p50_ms=float(row["p50_latency_ms"]),
            p99_ms=float(row["p99_latency_ms"]),
        )
        return checked(result, int(_redis_cli(port, "GET", "fencing-token") or 0) - token_before)

    def load(seconds: float) -> RoundResult:
        nonlocal per_second
        per_second = per_second or fenced_acquires(REDIS_CALIBRATION).per_second
        result = fenced_acquires(max(1_000, round(per_second * seconds)))
        per_second = result.per_second
        return result

    with running_redis(folder) as baseline:
        port = baseline.port
        script_sha = _redis_cli(port, "SCRIPT", "LOAD", (SCRIPTS / "fenced_acquire.lua").read_text())
        yield load


def _redis_cli(port: int, *words: str) -> str:
    return run([program("redis-cli", "redis-tools"), "-p", str(port), *words]).strip()


def checked(result: RoundResult, changed: int) -> RoundResult:
    """The result, invalid if more than a thousandth of the operations changed no key. Random keys may repeat."""
    if changed >= result.operations * 0.999:
        return result
    return result._replace(problem=f"{result.operations} operations changed only {changed} keys")


def _etcd_is_healthy(port: int) -> bool:
    try:
        return bool(_etcd_request(port, "GET", "/health", "").get("health") == "true")
    except OSError:
        return False


def _etcd_keys(port: int) -> int:
    all_keys = base64.b64encode(b"\0").decode()
    body = json.dumps({"key": all_keys, "range_end": all_keys, "count_only": True})
    return int(str(_etcd_request(port, "POST", "/v3/kv/range", body).get("count", "0")))


def _etcd_request(port: int, method: str, path: str, body: str) -> dict[str, object]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body)
        response: dict[str, object] = json.loads(connection.getresponse().read())
        return response
    finally:
        connection.close()


def _accepts_connections(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.connect()
    except OSError:
        return False
    connection.close()
    return True
