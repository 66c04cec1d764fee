"""The story of a lease, acted by real processes: python examples/demo (or: make demo).

One job, `daily-rollup`, must run in one place at a time. Anna wins it and is killed; Ben takes over; Ben stalls; Cleo
takes over; Ben wakes and tries to write. Each step is checked; the exit code is 1 if one did not go as told.
"""

import sys

try:
    import os
    import signal
    import tempfile
    import time
    from datetime import UTC, datetime
    from pathlib import Path

    import report
    import stage
    import voice
    from stage import Performer, Stage, StepFailedError
    from volcano_locks import Client
except KeyboardInterrupt:  # impatient, but nothing has been started yet
    sys.exit(130)

LOCK = "daily-rollup"
GRACE_SECONDS = 1
TAKEOVER_SECONDS = 15
LATE_SECONDS = 4.0


def check(holds: bool, promise: str) -> None:
    """One thing the story claims."""
    if not holds:
        raise StepFailedError(promise)


def token_of(heard: dict[str, object]) -> int:
    """The fencing token a worker was given."""
    token = heard["fencing_token"]
    assert isinstance(token, int)
    return token


def wait_for_takeover(client: Client, heir: Performer) -> tuple[int, float]:
    """Wait until `heir` has the lock; its fencing token, and how long the lease before it had been over."""
    state = client.locks.get(LOCK)
    check(state.held and state.expires_at is not None, "the dead holder's lease should still run")
    assert state.expires_at is not None
    token = token_of(heir.hear("won", TAKEOVER_SECONDS))
    seconds = (datetime.now(UTC) - state.expires_at).total_seconds()
    check(seconds >= GRACE_SECONDS, f"the takeover came {seconds:.1f} s after expiry, before the grace had ended")
    check(seconds <= GRACE_SECONDS + LATE_SECONDS, f"the takeover came {seconds:.1f} s after expiry, too late")
    return token, seconds


def set_the_scene(play: Stage, directory: Path) -> str:
    """The server, its project and key, and the application's database."""
    voice.heading("The scene")
    play.start_server()
    voice.event("server", f"listens on {play.url}, data in a SQLite file")
    project = play.operate("project", "create", "demo")
    key = play.operate("key", "create", "demo", "workers")
    voice.event("you", f"make a project ({project['name']}) and a service key for the workers")
    report.create(directory / "app.db", LOCK)
    voice.event("you", "make the report's own database: one row, nobody's yet")
    return key["key_value"]


def one_wins(anna: Performer, play: Stage, service_key: str) -> tuple[int, Performer]:
    """Act 1: contention."""
    token = token_of(anna.hear("won"))
    voice.event("anna", f"has the lock, with fencing token {token}", "green")
    ben = play.start_worker("ben", LOCK, service_key)
    ben.hear("held")
    voice.event("ben", "asks for it and is told that it is held; he keeps asking")
    anna.say("100")
    check(anna.hear("wrote")["accepted"] is True, "the holder's write should have been accepted")
    voice.event("anna", "writes the report; the row remembers her fencing token", "green")
    return token, ben


def holder_dies(client: Client, anna: Performer, ben: Performer, token: int) -> int:
    """Act 2: kill -9 and takeover."""
    anna.process.kill()
    check(anna.process.wait() == -signal.SIGKILL, "anna should have been killed")
    voice.event("you", f"kill -9 {anna.process.pid}: anna is gone and can tell nobody", "red")
    higher, seconds = wait_for_takeover(client, ben)
    voice.event("ben", f"has the lock {seconds:.1f} s after anna's lease expired", "green")
    check(higher > token, "the new fencing token should be higher")
    voice.event("ben", f"his fencing token is {higher}, higher than hers")
    return higher


def holder_stalls(client: Client, ben: Performer, cleo: Performer, token: int) -> int:
    """Act 3: a pause longer than the lease."""
    cleo.hear("held")
    voice.event("cleo", "wants the lock too and is told that it is held")
    os.kill(ben.process.pid, signal.SIGSTOP)
    voice.event("you", f"kill -STOP {ben.process.pid}: ben freezes just before his write", "red")
    higher, seconds = wait_for_takeover(client, cleo)
    voice.event("cleo", f"has the lock {seconds:.1f} s after ben's lease expired", "green")
    check(higher > token, "the new fencing token should be higher")
    cleo.say("300")
    check(cleo.hear("wrote")["accepted"] is True, "the new holder's write should have been accepted")
    voice.event("cleo", f"writes the report with fencing token {higher}", "green")
    return higher


def late_write_is_refused(ben: Performer, database: Path, token: int) -> None:
    """Act 4: the fence."""
    ben.say("200")
    os.kill(ben.process.pid, signal.SIGCONT)
    voice.event("you", f"kill -CONT {ben.process.pid}: ben wakes, sure that the lock is his")
    check(ben.hear("wrote")["accepted"] is False, "the late write should have been refused")
    voice.event("ben", "writes late: refused, the row has seen a higher token", "green")
    row = report.read(database, LOCK)
    check(row == report.Row(300, "cleo", token), f"the report should still be cleo's, and is {row}")
    voice.event("database", f"the report says {row.total}, written by {row.written_by}")
    assert ben.process.stdin is not None
    ben.process.stdin.close()
    ben.hear("lost")
    voice.event("ben", "leaves the block and is told that the lock was lost")


def act(play: Stage, directory: Path) -> None:
    """All of it, in order."""
    service_key = set_the_scene(play, directory)
    with Client(play.url, service_key) as client:
        voice.heading("1. One wins")
        anna = play.start_worker("anna", LOCK, service_key)
        first, ben = one_wins(anna, play, service_key)
        voice.heading("2. The holder dies")
        voice.explain("Her lease lasts 5 s after her last renewal, and 1 s more to be safe. Nobody has to notice.")
        second = holder_dies(client, anna, ben, first)
        voice.heading("3. The next one stalls")
        voice.explain("A stalled process cannot know that its time is up. It will go on where it stopped.")
        cleo = play.start_worker("cleo", LOCK, service_key)
        third = holder_stalls(client, ben, cleo, second)
        voice.heading("4. The late write")
        late_write_is_refused(ben, directory / "app.db", third)


def main() -> int:
    """Tell it, act it, and say what it showed."""
    stage.end_on_terminate()
    print("One job, three workers, and one of them at a time")
    voice.explain(f"""
        The job {LOCK} may run in one place at a time. A worker asks the lock service for a lease: the right to
        do it for 5 s, made longer again and again while the worker lives. Each new holder gets a higher number, its
        fencing token. This takes about 15 s.""")
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="volcano-locks-demo-") as name, Stage(Path(name)) as play:
            act(play, Path(name))
    except StepFailedError as error:
        voice.failure(str(error))
        return 1
    voice.heading(f"What you saw, in {time.monotonic() - started:.0f} s")
    for line in (
        "Of two workers one won, and the other was told so.",
        "When the holder died, the lock came free by itself: TTL + 1 s, no operator.",
        "A lease cannot stop a stalled process. The fencing token can, if the place you",
        "write to compares it: see FENCED_WRITE in examples/demo/report.py.",
    ):
        print(f"  {line}")
    print("\n  Read on: README.md (five minutes to a fenced write), docs/guide/leases.md")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
