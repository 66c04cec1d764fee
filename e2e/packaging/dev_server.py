"""A running `volcano-locks dev`, and the environment variables that it prints for export."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

STOP_SECONDS = 60


@contextmanager
def dev_server(program: Path, environment: Mapping[str, str], directory: Path) -> Iterator[dict[str, str]]:
    """`environment` plus the variables that `dev` prints. `dev` must exit with 0 on SIGTERM at the end."""
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
        output = ""
        while "Ctrl-C" not in output:
            line = process.stdout.readline()
            assert line, f"dev ended early: {process.communicate()}"
            output += line
        yield {**environment, **dict(re.findall(r"export (VOLCANO_\w+)=(\S+)", output))}
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 0, errors
