"""The demo: python examples/demo (or: make demo).

One job, `daily-rollup`, must run in one place at a time. Anna wins it and is killed; Ben takes over and stalls; Cleo
takes over; Ben continues and tries to write. Each step is checked; a failed one ends the demo with exit code 1.
"""

import sys

try:
    import os
    import signal
    import tempfile
    import time
    from datetime import UTC, datetime
    from pathlib import Path

    import output
    import processes
    import report
    from processes import DemoProcess, DemoProcesses, StepFailedError
    from volcano_locks import Client
except KeyboardInterrupt:  # before any process was started
    sys.exit(130)

LOCK = "daily-rollup"
GRACE_SECONDS = 1
TAKEOVER_SECONDS = 15
LATE_SECONDS = 4.0


def require(holds: bool, promise: str) -> None:
    """Fail the demo with `promise` unless it holds."""
    if not holds:
        raise StepFailedError(promise)


def token_of(event: dict[str, object]) -> int:
    """The fencing token in a worker's event."""
    token = event["fencing_token"]
    assert isinstance(token, int)
    return token


def wait_for_takeover(client: Client, successor: DemoProcess) -> tuple[int, float]:
    """Wait until `successor` has the lock; return its fencing token and the seconds since the last lease expired."""
    state = client.locks.get(LOCK)
    require(state.held and state.expires_at is not None, "the dead holder's lease should not have expired yet")
    assert state.expires_at is not None
    token = token_of(successor.expect_event("won", TAKEOVER_SECONDS))
    seconds = (datetime.now(UTC) - state.expires_at).total_seconds()
    require(seconds >= GRACE_SECONDS, f"the takeover came {seconds:.1f} s after expiry, before the grace had ended")
    require(seconds <= GRACE_SECONDS + LATE_SECONDS, f"the takeover came {seconds:.1f} s after expiry, too late")
    return token, seconds


def set_up(demo: DemoProcesses, directory: Path) -> str:
    """Start the server; create its project and key, and the application's database."""
    output.heading("Set-up")
    demo.start_server()
    output.event("server", f"listens on {demo.url}, data in a SQLite file")
    project = demo.run_admin_command("project", "create", "demo")
    key = demo.run_admin_command("key", "create", "demo", "workers")
    output.event("you", f"create a project ({project['name']}) and a service key for the workers")
    report.create(directory / "app.db", LOCK)
    output.event("you", "create the report's own database: one row, not written yet")
    return key["key_value"]


def one_wins(anna: DemoProcess, demo: DemoProcesses, service_key: str) -> tuple[int, DemoProcess]:
    """Part 1: contention."""
    token = token_of(anna.expect_event("won"))
    output.event("anna", f"has the lock, with fencing token {token}", "green")
    ben = demo.start_worker("ben", LOCK, service_key)
    ben.expect_event("held")
    output.event("ben", "tries to acquire it: it is held; he keeps trying")
    anna.send("100")
    require(anna.expect_event("wrote")["accepted"] is True, "the holder's write should have been accepted")
    output.event("anna", "writes the report; the row remembers her fencing token", "green")
    return token, ben


def holder_dies(client: Client, anna: DemoProcess, ben: DemoProcess, token: int) -> int:
    """Part 2: kill -9 and takeover."""
    anna.process.kill()
    require(anna.process.wait() == -signal.SIGKILL, "anna should have been killed")
    output.event("you", f"kill -9 {anna.process.pid}: anna is gone, without a release", "red")
    higher, seconds = wait_for_takeover(client, ben)
    output.event("ben", f"has the lock {seconds:.1f} s after anna's lease expired", "green")
    require(higher > token, "the new fencing token should be higher")
    output.event("ben", f"his fencing token is {higher}, higher than hers")
    return higher


def holder_stalls(client: Client, ben: DemoProcess, cleo: DemoProcess, token: int) -> int:
    """Part 3: a pause longer than the lease."""
    cleo.expect_event("held")
    output.event("cleo", "tries to acquire the lock too: it is held")
    os.kill(ben.process.pid, signal.SIGSTOP)
    output.event("you", f"kill -STOP {ben.process.pid}: ben is stopped just before his write", "red")
    higher, seconds = wait_for_takeover(client, cleo)
    output.event("cleo", f"has the lock {seconds:.1f} s after ben's lease expired", "green")
    require(higher > token, "the new fencing token should be higher")
    cleo.send("300")
    require(cleo.expect_event("wrote")["accepted"] is True, "the new holder's write should have been accepted")
    output.event("cleo", f"writes the report with fencing token {higher}", "green")
    return higher


def late_write_is_refused(ben: DemoProcess, database: Path, token: int) -> None:
    """Part 4: fencing."""
    ben.send("200")
    os.kill(ben.process.pid, signal.SIGCONT)
    output.event("you", f"kill -CONT {ben.process.pid}: ben continues and believes that he holds the lock")
    require(ben.expect_event("wrote")["accepted"] is False, "the late write should have been refused")
    output.event("ben", "writes late: refused, the row has seen a higher token", "green")
    row = report.read(database, LOCK)
    require(row == report.Row(300, "cleo", token), f"the report should still be cleo's, and is {row}")
    output.event("database", f"the report says {row.total}, written by {row.written_by}")
    assert ben.process.stdin is not None
    ben.process.stdin.close()
    ben.expect_event("lost")
    output.event("ben", "leaves the block and learns that the lock was lost")


def run_parts(demo: DemoProcesses, directory: Path) -> None:
    """Run all parts in order."""
    service_key = set_up(demo, directory)
    with Client(demo.url, service_key) as client:
        output.heading("1. One wins")
        anna = demo.start_worker("anna", LOCK, service_key)
        first, ben = one_wins(anna, demo, service_key)
        output.heading("2. The holder dies")
        output.explain("Her lease expires 5 s after her last renewal, and 1 s of grace follows. No operator is needed.")
        second = holder_dies(client, anna, ben, first)
        output.heading("3. The next one stalls")
        output.explain("A stalled process cannot know that its lease expired. It continues where it stopped.")
        cleo = demo.start_worker("cleo", LOCK, service_key)
        third = holder_stalls(client, ben, cleo, second)
        output.heading("4. The late write")
        late_write_is_refused(ben, directory / "app.db", third)


def main() -> int:
    """Run the demo and print what it showed."""
    processes.end_on_terminate()
    print("One job, three workers, and one of them at a time")
    output.explain(f"""
        The job {LOCK} may run in one place at a time. A worker acquires a lease of 5 s from the lock service and
        keeps renewing it while it runs. Each new holder gets a higher number, its fencing token. This takes about
        15 s.""")
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="volcano-locks-demo-") as name, DemoProcesses(Path(name)) as demo:
            run_parts(demo, Path(name))
    except StepFailedError as error:
        output.failure(str(error))
        return 1
    output.heading(f"What you saw, in {time.monotonic() - started:.0f} s")
    for text in (
        "One of two workers won; the other learned that the lock is held.",
        "When the holder died, the lock became free by itself after TTL + 1 s.",
        "A lease cannot stop a stalled process. The fencing token can refuse its write,",
        "if the destination compares it: see FENCED_WRITE in examples/demo/report.py.",
    ):
        print(f"  {text}")
    print("\n  Read on: README.md (five minutes to a fenced write), docs/guide/leases.md")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
