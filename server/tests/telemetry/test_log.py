"""The log writer: it never blocks its callers."""

import threading

from volcano_locks_server.telemetry import LineWriter


class _StuckStream:
    """A stream that blocks until `gate` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.written: list[str] = []

    def write(self, text: str) -> int:
        self.gate.wait()
        self.written.append(text)
        return len(text)

    def flush(self) -> None:
        return


def test_a_slow_log_stream_does_not_block_the_server() -> None:
    """OPS-6: lines over the limit of the queue are dropped and counted; the rest is written later."""
    stream = _StuckStream()
    writer = LineWriter(stream)  # type: ignore[arg-type]
    for number in range(25_000):
        writer.write(str(number))
    assert 5_000 <= writer.dropped < 25_000, (
        "10,000 wait, and as many may have been taken from the queue before it stuck"
    )
    stream.gate.set()
    writer.close()
    lines = "".join(stream.written).splitlines()
    assert len(lines) == 25_000 - writer.dropped
    assert lines[:3] == ["0", "1", "2"]
