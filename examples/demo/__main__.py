"""A demonstration of leases and fencing with real processes: python examples/demo (or: make demo).

The job `daily-rollup` must run in one place at a time. Anna acquires its lock and is killed. Ben takes over and is
stopped. Cleo takes over. Ben continues and tries to write. Each step is checked; the exit code is 1 if one fails.
"""

import sys

try:
    import os
    import signal
    import tempfile
    import time
    from datetime import UTC, datetime
    from pathlib import Path

    import console
    import report
    from processes import DemoFailedError, DemoProcess, Processes, exit_on_sigterm
    from volcano_locks import Client
except KeyboardInterrupt:  # nothing has been started yet
    sys.exit(130)

LOCK = "daily-rollup"
GRACE_SECONDS = 1
TAKEOVER_SECONDS = 15
LATE_SECONDS = 4.0


def check(holds: bool, promise: str) -> None:
    """Fail the demo unless the promise holds."""
    if not holds:
        raise DemoFailedError(promise)


def token_of(event: dict[str, object]) -> int:
    """The fencing token in a worker's event."""
    token = event["fencing_token"]
    assert isinstance(token, int)
    return token


def wait_for_takeover(client: Client, next_holder: DemoProcess) -> tuple[int, float]:
    """Wait until `next_holder` has the lock. Returns its token and the seconds since the previous lease expired."""
    state = client.locks.get(LOCK)
    check(state.held and state.expires_at is not None, "the previous holder's lease should still be alive")
    assert state.expires_at is not None
    token = token_of(next_holder.expect("won", TAKEOVER_SECONDS))
    seconds = (datetime.now(UTC) - state.expires_at).total_seconds()
    check(seconds >= GRACE_SECONDS, f"the takeover came {seconds:.1f} s after expiry, before the grace had ended")
    check(seconds <= GRACE_SECONDS + LATE_SECONDS, f"the takeover came {seconds:.1f} s after expiry, too late")
    return token, seconds


def set_up(processes: Processes, directory: Path) -> str:
    """Start the server, create a project, a service key and the application's database. Returns the key."""
    console.heading("Set-up")
    processes.start_server()
    console.event("server", f"listens on {processes.url}, data in a SQLite file")
    project = processes.admin("project", "create", "demo")
    key = processes.admin("key", "create", "demo", "workers")
    console.event("you", f"create a project ({project['name']}) and a service key for the workers")
    report.create(directory / "app.db", LOCK)
    console.event("you", "create the application's database with one row")
    return key["key_value"]


def one_wins(anna: DemoProcess, processes: Processes, service_key: str) -> tuple[int, DemoProcess]:
    """Step 1: contention."""
    token = token_of(anna.expect("won"))
    console.event("anna", f"acquires the lock, with fencing token {token}", "green")
    ben = processes.start_worker("ben", LOCK, service_key)
    ben.expect("held")
    console.event("ben", "tries to acquire it: it is held, so he keeps trying")
    anna.send("100")
    check(anna.expect("wrote")["accepted"] is True, "the holder's write should have been accepted")
    console.event("anna", "writes the report; the row stores her fencing token", "green")
    return token, ben


def holder_dies(client: Client, anna: DemoProcess, ben: DemoProcess, token: int) -> int:
    """Step 2: kill -9 and takeover."""
    anna.process.kill()
    check(anna.process.wait() == -signal.SIGKILL, "anna should have been killed")
    console.event("you", f"kill -9 {anna.process.pid}: anna dies and releases nothing", "red")
    higher, seconds = wait_for_takeover(client, ben)
    console.event("ben", f"acquires the lock {seconds:.1f} s after anna's lease expired", "green")
    check(higher > token, "the new fencing token should be higher")
    console.event("ben", f"his fencing token is {higher}, higher than hers")
    return higher


def holder_stalls(client: Client, ben: DemoProcess, cleo: DemoProcess, token: int) -> int:
    """Step 3: a pause longer than the lease."""
    cleo.expect("held")
    console.event("cleo", "tries to acquire the lock: it is held")
    os.kill(ben.process.pid, signal.SIGSTOP)
    console.event("you", f"kill -STOP {ben.process.pid}: ben stops just before his write", "red")
    higher, seconds = wait_for_takeover(client, cleo)
    console.event("cleo", f"acquires the lock {seconds:.1f} s after ben's lease expired", "green")
    check(higher > token, "the new fencing token should be higher")
    cleo.send("300")
    check(cleo.expect("wrote")["accepted"] is True, "the new holder's write should have been accepted")
    console.event("cleo", f"writes the report with fencing token {higher}", "green")
    return higher


def late_write_is_refused(ben: DemoProcess, database: Path, token: int) -> None:
    """Step 4: the fencing token."""
    ben.send("200")
    os.kill(ben.process.pid, signal.SIGCONT)
    console.event("you", f"kill -CONT {ben.process.pid}: ben continues, sure of his lock")
    check(ben.expect("wrote")["accepted"] is False, "the late write should have been refused")
    console.event("ben", "writes late: refused, the row has a higher fencing token", "green")
    row = report.read(database, LOCK)
    check(row == report.Row(300, "cleo", token), f"the report should still be cleo's, but it is {row}")
    console.event("database", f"the report is {row.total}, written by {row.written_by}")
    assert ben.process.stdin is not None
    ben.process.stdin.close()
    ben.expect("lost")
    console.event("ben", "leaves the block and gets LockOwnershipLostError")


def run_demo(processes: Processes, directory: Path) -> None:
    """All steps in order."""
    service_key = set_up(processes, directory)
    with Client(processes.url, service_key) as client:
        console.heading("1. One worker wins")
        anna = processes.start_worker("anna", LOCK, service_key)
        first, ben = one_wins(anna, processes, service_key)
        console.heading("2. The holder dies")
        console.explain("Her lease expires 5 s after its last renewal; 1 s later the lock is free.")
        second = holder_dies(client, anna, ben, first)
        console.heading("3. The next holder stalls")
        console.explain("A stalled process cannot notice that its lease has expired. It continues where it stopped.")
        cleo = processes.start_worker("cleo", LOCK, service_key)
        third = holder_stalls(client, ben, cleo, second)
        console.heading("4. The late write")
        late_write_is_refused(ben, directory / "app.db", third)


def main() -> int:
    """Run the demo with an introduction and a summary. Returns the exit code."""
    exit_on_sigterm()
    print("One job, three workers, one at a time")
    console.explain(f"""
        The job {LOCK} may run in one place at a time. A worker acquires a lease of 5 s and the client keeps renewing
        it while the worker runs. Each new holder gets a higher number, its fencing token. This takes about 15 s.""")
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="volcano-locks-demo-") as name, Processes(Path(name)) as processes:
            run_demo(processes, Path(name))
    except DemoFailedError as error:
        console.failure(str(error))
        return 1
    console.heading(f"What you saw, in {time.monotonic() - started:.0f} s")
    for line in (
        "Two workers tried to acquire the lock: one got it, the other got `held`.",
        "When the holder died, the lock became free by itself after TTL + 1 s.",
        "A lease cannot stop a stalled process, but the fencing token stops its write",
        "if the database compares it: see FENCED_WRITE in examples/demo/report.py.",
    ):
        print(f"  {line}")
    print("\n  Next: README.md (five minutes to a fenced write), docs/guide/leases.md")
    print("  To watch locks in a browser: volcano-locks dev, and open the dashboard's link")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
