"""The recipes for BullMQ, Next.js and Express run as they are printed."""

import json
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx2
from integrations.workers import example, started
from testsupport.engines.processes import free_port

from volcano_locks import Client

SEND = """
import { Queue } from "bullmq";
const queue = new Queue("invoices", { connection: { url: process.env.REDIS_URL } });
for (const customer of process.argv.slice(2)) await queue.add("invoice", { customer });
await queue.close();
"""


def send(environment: dict[str, str], folder: Path, *customers: str) -> None:
    (folder / "send.mjs").write_text(SEND)
    subprocess.run(["node", "send.mjs", *customers], env=environment, cwd=folder, check=True, timeout=60)


def test_bullmq_runs_a_job_under_its_lock_and_delays_it_while_the_lock_is_held(
    environment: dict[str, str], redis_database: str, tmp_path: Path, client: Client
) -> None:
    environment = environment | {"REDIS_URL": redis_database}
    (tmp_path / "worker.mjs").write_text(example("bullmq.md").replace("5_000", "500"))
    with started(["node", "worker.mjs"], environment, tmp_path) as workers:
        with client.locks.with_lock("invoice-ada", ttl=30):
            send(environment, tmp_path, "ada", "grace")
            wait_for(workers, "invoiced grace")
            time.sleep(1.5)
            assert "invoiced ada" not in "".join(worker.output() for worker in workers)
        wait_for(workers, "invoiced ada")


def test_bullmq_another_worker_runs_the_job_of_a_killed_one(
    environment: dict[str, str], redis_database: str, tmp_path: Path
) -> None:
    environment = environment | {"REDIS_URL": redis_database}
    program = example("bullmq.md").replace("5_000", "500").replace("ttl: 30", "ttl: 5")
    program = program.replace("REDIS_URL } }", "REDIS_URL }, lockDuration: 2000, stalledInterval: 1000 }")
    hanging = program.replace("signal.throwIfAborted();", 'console.log("started"); await new Promise(() => {});')
    (tmp_path / "worker.mjs").write_text(program)
    (tmp_path / "hanging.mjs").write_text(hanging)
    with started(["node", "hanging.mjs"], environment, tmp_path, 1, "hanging") as (first,):
        send(environment, tmp_path, "ada")
        first.wait_for_output("started")
        with started(["node", "worker.mjs"], environment, tmp_path, 1) as (second,):
            first.kill()
            second.wait_for_output("invoiced ada under fencing token")


def test_of_two_calls_of_the_cron_route_one_runs(environment: dict[str, str], tmp_path: Path) -> None:
    """No timer outlives the response: the program ends by itself."""
    (tmp_path / "route.mjs").write_text(example("nextjs.md"))
    (tmp_path / "call.mjs").write_text("""
import { GET } from "./route.mjs";
const headers = (secret) => ({ authorization: `Bearer ${secret}` });
const call = (secret) => GET(new Request("http://app.test/api/cron", { headers: headers(secret) }));
const responses = await Promise.all([call("s"), call("s"), call("wrong")]);
const bodies = [await responses[0].json(), await responses[1].json()];
console.log(JSON.stringify([responses.map((one) => one.status), ...bodies]));
""")
    secret = environment | {"CRON_SECRET": "s"}
    began_at = time.monotonic()
    output = subprocess.check_output(["node", "call.mjs"], env=secret, cwd=tmp_path, timeout=60)
    statuses, *bodies = json.loads(output)
    assert statuses == [200, 200, 401]
    assert sorted(body["ran"] for body in bodies) == [False, True]
    assert time.monotonic() - began_at < 10


def test_express_finishes_its_requests_and_exits_by_itself(
    environment: dict[str, str], tmp_path: Path, client: Client
) -> None:
    port = free_port()
    (tmp_path / "app.mjs").write_text(example("express.md"))
    url = f"http://127.0.0.1:{port}/reports/monday"
    with started(["node", "app.mjs"], environment | {"PORT": str(port)}, tmp_path, count=1) as (app,):
        app.wait_for_output("listening")
        statuses: list[int] = []
        request = threading.Thread(target=lambda: statuses.append(httpx2.post(url, timeout=30).status_code))
        request.start()
        while not client.locks.get("report-monday").held:
            time.sleep(0.02)
        assert httpx2.post(url, timeout=30).status_code == 409
        app.signal(signal.SIGTERM)
        assert app.wait() == 0
        request.join()
        assert statuses == [200]
        assert not client.locks.get("report-monday").held


def wait_for(workers: list, text: str) -> None:
    """Return when one of the workers printed `text`."""
    give_up_at = time.monotonic() + 30
    while not any(text in worker.output() for worker in workers):
        assert time.monotonic() < give_up_at, [worker.output() for worker in workers]
        time.sleep(0.05)
