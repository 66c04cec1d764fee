"""A running `volcano-locks dev` for tests, and the environment that it tells people to export."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

STOP_SECONDS = 60


@contextmanager
def dev_server(program: Path, environment: Mapping[str, str], directory: Path) -> Iterator[dict[str, str]]:
    """`environment` with what `dev` shows; `dev` must end with 0 when it is asked to at the end."""
    process = subprocess.Popen(
        [program, "dev", "--port", "0"],
        env=environment,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        shown = ""
        while "Ctrl-C" not in shown:
            line = process.stdout.readline()
            assert line, f"dev ended early: {process.communicate()}"
            shown += line
        yield {**environment, **dict(re.findall(r"export (VOLCANO_\w+)=(\S+)", shown))}
    finally:
        process.terminate()
        _, told = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 0, told
