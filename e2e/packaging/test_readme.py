"""README.md can be followed to the letter: its commands and programs run, and its links lead somewhere."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from testsupport.engines import postgres
from testsupport.engines.processes import program

from .dev_server import dev_server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
SHELL = [text for language, text in BLOCKS if language == "sh"]
PYTHON, JAVASCRIPT, RUBY = ([text for language, text in BLOCKS if language == one] for one in ("python", "js", "ruby"))
RUN_ELSEWHERE = {
    "python3 -m venv .venv && . .venv/bin/activate\npip install './sdks/python[cli]' ./server\n": (
        "test_installed_wheels.py installs the same as wheels"
    ),
    "volcano-locks dev\n": "dev_server",
}
SERVE = "volcano-locks serve --store sqlite:///locks.db\n"
AFTER_SERVE = next(text for text in SHELL if "project create" in text)
FENCED = [text for text in SHELL if "psql" in text]
IN_ORDER = [text for text in SHELL if text not in {*RUN_ELSEWHERE, SERVE, AFTER_SERVE, *FENCED}]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of the reader's second terminal, with the programs of this environment first."""
    bare = {name: value for name, value in os.environ.items() if "VOLCANO" not in name}
    bare["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{bare['PATH']}"
    with dev_server(Path(sys.executable).with_name("volcano-locks"), bare, tmp_path_factory.mktemp("dev")) as ready:
        yield ready


def run(script: str, environment: dict[str, str], directory: Path) -> str:
    done = subprocess.run(
        ["bash", "-euc", script],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_blocks_that_are_run_elsewhere_are_still_there() -> None:
    assert set(RUN_ELSEWHERE) | {SERVE} <= set(SHELL)
    assert {language for language, _ in BLOCKS} == {"sh", "python", "js", "ruby", "text"}


@pytest.mark.real_time
def test_the_commands_run(environment: dict[str, str], tmp_path: Path) -> None:
    (output,) = (run(script, environment, tmp_path) for script in IN_ORDER)
    assert "exit code 75" in output
    assert "daily-rollup" in output
    assert "never printed" not in output


@pytest.mark.engines
def test_postgresql_refuses_the_late_write(environment: dict[str, str], tmp_path: Path) -> None:
    """The section on fencing, with an empty database that psql connects to."""
    server = postgres.shared()
    connection = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "postgres"}
    database = {**environment, **connection, "PGDATABASE": server.new_database()}
    database["PATH"] += f"{os.pathsep}{Path(program('psql', 'postgresql')).parent}"
    fenced, written, late = (run(script, database, tmp_path) for script in FENCED)
    assert (fenced, written) == ("", "")
    assert late.split() == ["refused", "2"]


@pytest.mark.real_time
def test_the_programs_run(environment: dict[str, str], tmp_path: Path) -> None:
    def play(program: str) -> str:
        (tmp_path / "program.py").write_text(program)
        return run("python program.py", environment, tmp_path)

    first, *others = (play(program) for program in PYTHON)
    assert first.startswith("held under fencing token ")
    assert len(others) == 2
    assert all(output.startswith("sent under fencing token ") for output in others)


def test_the_programs_in_javascript_and_ruby_run(environment: dict[str, str], tmp_path: Path) -> None:
    """With the JavaScript client as it was last built, and with the Ruby client of `sdks/ruby`."""
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/volcano-locks").symlink_to(ROOT / "sdks/javascript")
    (in_javascript,), (in_ruby,) = JAVASCRIPT, RUBY
    (tmp_path / "program.mjs").write_text(in_javascript)
    (tmp_path / "program.rb").write_text(in_ruby)
    assert run("node program.mjs", environment, tmp_path).startswith("sent under fencing token ")
    assert run(f"ruby -I '{ROOT}/sdks/ruby/lib' program.rb", environment, tmp_path).startswith(
        "sent under fencing token "
    )


@pytest.mark.parametrize(
    ("readme", "language", "start"),
    [("sdks/javascript", "js", "node worker.mjs"), ("sdks/ruby", "ruby", f"ruby -I '{ROOT}/sdks/ruby/lib' worker.rb")],
)
def test_the_first_worker_of_a_clients_readme(
    readme: str, language: str, start: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """Alone it works to its end; beside a holder it names it. Its pauses are shorter here."""
    worker = re.findall(rf"```{language}\n(.*?)```", (ROOT / readme / "README.md").read_text(), re.DOTALL)[0]
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/volcano-locks").symlink_to(ROOT / "sdks/javascript")
    (tmp_path / start.rsplit(maxsplit=1)[-1]).write_text(
        worker.replace("sleep(1000,", "sleep(10,").replace("sleep 1\n", "sleep 0.01\n")
    )
    assert run(start, environment, tmp_path).count(" under fencing token ") == 20
    assert run(f"volcano-locks run --pass-service-key daily-rollup -- {start}", environment, tmp_path).startswith(
        "held by "
    )


def test_the_steps_of_a_production_server(environment: dict[str, str], tmp_path: Path) -> None:
    """Literally, except for the port, which another program may use already."""
    server = subprocess.Popen(
        SERVE.split(),
        env={**environment, "VOLCANO_LOCKS_PORT": "0"} | {"VOLCANO_LOCKS_ADMIN_TOKEN": ""},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        output = ""
        while (url := re.search(r"listening on (\S+),", output)) is None or "the admin token is in" not in output:
            line = server.stdout.readline()
            assert line, f"serve ended early: {output}"
            output += line
        bare = {name: value for name, value in environment.items() if "VOLCANO" not in name}
        assert run(AFTER_SERVE, {**bare, "VOLCANO_API_URL": url.group(1)}, tmp_path).endswith("it works\n")
        assert (tmp_path / "nightly.key").stat().st_mode & 0o077 == 0
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_every_link_leads_somewhere() -> None:
    targets = [*re.findall(r"\]\(([^)#]+)[^)]*\)", README), *re.findall(r"src(?:set)?=\"([^\"]+)\"", README)]
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target
