"""Programs that use a client in handlers, in finalizers and while the interpreter ends, and under gevent (SDK-23)."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from testsupport.server_process import ServerProcess

from volcano_locks import Client

pytestmark = pytest.mark.real_time

EXIT_SECONDS_MAX = 20


@pytest.fixture
def run(process: ServerProcess, service_key: str) -> Callable[[str], str]:
    """Runs a program; returns its output and whether the lock `k` is held after its end."""
    environment = {name: value for name, value in os.environ.items() if "VOLCANO" not in name}
    environment |= {"VOLCANO_API_URL": process.url, "VOLCANO_SERVICE_KEY": service_key}

    def run(program: str) -> str:
        with Client(process.url, service_key) as client:
            client.locks.force_release("k")
        ended = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "ignore::ResourceWarning", "-c", program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=EXIT_SECONDS_MAX,
            check=False,
        )
        with Client(process.url, service_key) as client:
            return f"{ended.stdout}exit code {ended.returncode}, held {client.locks.get('k').held}"

    return run


FREE = "exit code 0, held False"


@pytest.mark.parametrize(
    "program",
    {
        "finalizer": """
class Job:
    def __init__(self):
        self.client = Client()
        self.lease = self.client.locks.acquire("k", ttl=60)
    def __del__(self):
        self.client.locks.release("k", self.lease)
job = Job()
""",
        "generator": """
client = Client()
def rows():
    with client.locks.with_lock("k", ttl=60) as guard:
        for n in range(10):
            yield n, guard.fencing_token
reader = rows()
next(reader)
""",
        "unfinished watch": """
client = Client()
changes = client.locks.watch("k")
next(changes)
""",
        "exit handler": """
import atexit
client = Client()
lease = client.locks.acquire("k", ttl=60)
atexit.register(client.close)
atexit.register(client.locks.release, "k", lease)
""",
        "block in an exit handler": """
import atexit
client = Client()
def last():
    with client.locks.with_lock("k", ttl=60) as guard:
        assert not guard.lost
atexit.register(last)
""",
        "weak finalizer": """
import weakref
client = Client()
class Job: ...
job = Job()
weakref.finalize(job, client.locks.release, "k", client.locks.acquire("k", ttl=60))
""",
        "cycle": """
import gc
client = Client()
class Job:
    def __init__(self):
        self.me, self.lease = self, client.locks.acquire("k", ttl=60)
    def __del__(self):
        client.locks.release("k", self.lease)
Job()
with client.locks.with_lock("other", ttl=60) as guard:
    gc.collect()
    assert not guard.lost
""",
        "forked child in a finalizer": """
import os
client = Client()
class Job:
    def __init__(self):
        self.block = client.locks.with_lock("k", ttl=60)
        self.guard = self.block.__enter__()
    def __del__(self):
        if not self.guard.lost:
            self.block.__exit__(None, None, None)
job = Job()
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert client.locks.get("k").held
""",
        "thread that waits": """
import threading
client = Client()
client.locks.force_release("k")
held = client.locks.acquire("waited-for", ttl=60)
threading.Thread(target=client.locks.acquire, args=["waited-for"], kwargs={"ttl": 60, "wait": 600}, daemon=True).start()
threading.Event().wait(0.3)
client.locks.release("waited-for", held)
""",
    }.items(),
    ids=lambda item: item[0],
)
def test_a_program_ends_and_leaves_nothing_held(run: Callable[[str], str], program: tuple[str, str]) -> None:
    """SDK-23, case 41: released by the thread that runs the finalizer, also while modules are taken apart."""
    assert run(f"from volcano_locks import Client\n{program[1]}") == FREE


def test_a_program_may_close_its_client_in_a_signal_handler(run: Callable[[str], str]) -> None:
    """SDK-23, case 42: during a wait, without waiting for itself."""
    program = """
import os, signal, threading, time
from volcano_locks import Client, VolcanoError
client, owner = Client(), Client()
held = owner.locks.acquire("k", ttl=60)
signal.signal(signal.SIGTERM, lambda *_: client.close())
threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGTERM]).start()
began = time.monotonic()
try:
    client.locks.acquire("k", ttl=60, wait=600)
except VolcanoError as error:
    print(error, time.monotonic() - began < 5)
print(owner.locks.view("k").waiters)
owner.locks.release("k", held)
"""
    assert run(program) == f"this client is closed True\n0\n{FREE}"


GEVENT = """
from gevent import monkey
monkey.patch_all()
import time
import gevent
from volcano_locks import Client
client, owner = Client(), Client()
"""


@pytest.mark.parametrize(
    "program",
    {
        "a block, renewed in the background": """
with client.locks.with_lock("k", ttl=5, renew_every=1) as guard:
    expires_at = guard.lease.expires_at
    time.sleep(1.5)
    assert guard.lease.expires_at > expires_at
    assert not guard.lost
""",
        "a wait, beside other greenlets": """
held = owner.locks.acquire("k", ttl=60)
waiting = gevent.spawn(client.locks.acquire, "k", ttl=60, wait=60)
time.sleep(0.2)
assert not waiting.ready()
owner.locks.release("k", held)
client.locks.release("k", waiting.get(timeout=5))
""",
        "close ends a wait": """
held = owner.locks.acquire("k", ttl=60)
waiting = gevent.spawn(client.locks.acquire, "k", ttl=60, wait=60)
time.sleep(0.2)
client.close()
waiting.join(timeout=5)
assert str(waiting.exception) == "this client is closed"
assert owner.locks.view("k").waiters == 0
owner.locks.release("k", held)
""",
        "a time limit ends a wait": """
held = owner.locks.acquire("k", ttl=60)
limit = gevent.Timeout(0.2)
limit.start()
try:
    client.locks.acquire("k", ttl=60, wait=60)
except gevent.Timeout as error:
    assert error is limit
else:
    raise SystemExit("not interrupted")
assert owner.locks.view("k").waiters == 0
owner.locks.release("k", held)
""",
        "time limits at any instant of a block": """
import random
random.seed(5)
for n in range(200):
    try:
        with gevent.Timeout(random.uniform(0.0001, 0.004)):
            with client.locks.with_lock("k", ttl=5):
                gevent.sleep(0)
    except gevent.Timeout:
        pass
    assert not owner.locks.get("k").held, n
""",
        "a loss wakes the greenlet that waits for it": """
block = client.locks.with_lock("k", ttl=5, renew_every=1)
guard = block.__enter__()
waiting = gevent.spawn(guard.wait_lost)
owner.locks.force_release("k")
assert waiting.get(timeout=5)
""",
    }.items(),
    ids=lambda item: item[0],
)
@pytest.mark.parametrize("by_name", [False, True])
def test_a_program_under_gevent(run: Callable[[str], str], program: tuple[str, str], by_name: bool) -> None:
    """SDK-23: patched sockets, threads and queues; for a host name, also a look-up in a patched thread."""
    named = (
        "import os\nos.environ['VOLCANO_API_URL'] = os.environ['VOLCANO_API_URL'].replace('127.0.0.1', 'localhost')\n"
    )
    setting = named if by_name else ""
    output = run(setting + GEVENT + program[1])
    assert output.splitlines()[-1] == FREE, output
