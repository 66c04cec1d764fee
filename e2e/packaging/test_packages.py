"""The packages of `make dist` can be published: addresses, changelog, links, the same bytes again; and they work."""

import hashlib
import json
import os
import re
import subprocess
import tarfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from release.packages import build
from release.staging import project

pytestmark = pytest.mark.xdist_group("packages")  # one process builds them
ROOT = Path(__file__).parents[2]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("NODE_", "RUBY", "GEM_", "BUNDLE"))}
PROGRAM = """
import { Client, LockHeldError } from "volcano-locks";
import { FakeClient } from "volcano-locks/testing";
import { VolcanoError } from "volcano-locks/errors";
const { data } = await new FakeClient().locks.withLock("k", { ttl: 30 }, ({ signal }) => signal.aborted);
console.log(data, typeof Client, new LockHeldError("x") instanceof VolcanoError);
"""
RUBY_PROGRAM = """
require "volcano_locks/testing"
puts VolcanoLocks::Testing::FakeClient.new.locks.with_lock("k", ttl: 30) { |guard| guard.lost? }
puts Gem.loaded_specs["volcano_locks"].gem_dir
"""


def text_of(archive: Path, name: str) -> str:
    """The text of the file of that name in the top folder of an archive."""
    with tarfile.open(archive) as opened:
        (member,) = (one for one in opened.getnames() if re.fullmatch(rf"[^/]+/{re.escape(name)}", one))
        file = opened.extractfile(member)
        assert file is not None
        return file.read().decode()


def run(command: list[str | Path], folder: Path, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=CLEAN | variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tarball(packages: Path) -> Path:
    (found,) = packages.glob("*.tgz")
    return found


@pytest.fixture(scope="module")
def gem(packages: Path) -> Path:
    (found,) = packages.glob("*.gem")
    return found


def test_every_version_is_that_of_the_project_file(packages: Path) -> None:
    version = project()["version"]
    names = {file.name for file in packages.glob("volcano*")}
    assert names == {
        f"volcano_locks-{version}.tar.gz",
        f"volcano_locks-{version}-py3-none-any.whl",
        f"volcano_locks_server-{version}.tar.gz",
        f"volcano_locks_server-{version}-py3-none-any.whl",
        f"volcano-locks-{version}.tgz",
        f"volcano_locks-{version}.gem",
    }


def test_each_package_has_the_addresses_of_the_project_file(
    source_archives: dict[str, Path], tarball: Path, gem: Path
) -> None:
    urls = project()["urls"]
    for archive in source_archives.values():
        metadata: Message = Parser().parsestr(text_of(archive, "PKG-INFO"))
        stated = dict(one.split(", ", 1) for one in metadata.get_all("Project-URL", []))
        assert stated == urls
    package = json.loads(text_of(tarball, "package.json"))
    assert (package["homepage"], package["bugs"]) == (urls["Homepage"], urls["Issues"])
    assert not {"private", "devDependencies", "scripts"} & set(package)
    specification = run(["gem", "specification", gem, "--ruby"], gem.parent)
    assert urls["Homepage"] in specification
    assert urls["Changelog"] in specification


def test_each_package_has_the_changelog_and_a_readme_without_relative_links(
    source_archives: dict[str, Path], tarball: Path
) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    for archive in (*source_archives.values(), tarball):
        assert text_of(archive, "CHANGELOG.md") == changelog
        links = re.findall(r"\]\(([^)#\s]+)", text_of(archive, "README.md"))
        assert all(link.startswith("https://") for link in links)


def test_a_second_build_has_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    """Of the wheels and source archives. `make dist` compares the npm tarball and the gem too, which takes longer."""
    built = build(tmp_path, kinds=["python"])
    assert len(built) == 4
    for file in built:
        first, second = ((folder / file.name).read_bytes() for folder in (packages, tmp_path))
        assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest(), file.name


def test_the_npm_tarball_works_in_an_empty_folder(tarball: Path, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"private": true}')
    run(["npm", "install", "--offline", "--no-audit", "--no-fund", tarball], tmp_path)
    (tmp_path / "program.mjs").write_text(PROGRAM)
    assert run(["node", "program.mjs"], tmp_path) == "false function true\n"


def test_the_gem_works_in_an_empty_home(gem: Path, tmp_path: Path) -> None:
    run(["gem", "install", "--local", "--no-document", "--install-dir", tmp_path, gem], tmp_path)
    output = run(["ruby", "-e", RUBY_PROGRAM], tmp_path, GEM_HOME=str(tmp_path), GEM_PATH=str(tmp_path))
    assert output == f"false\n{tmp_path.resolve()}/gems/volcano_locks-{project()['version']}\n"
