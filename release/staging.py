"""Copies of the package folders with what a published package has in addition: the project's addresses, licence,
changelog, and a README whose links work outside the repository.
"""

import json
import posixpath
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOT_COPIED = shutil.ignore_patterns("node_modules", "dist", "tests", "test", "__pycache__", "*.egg-info", ".*_cache")
LINK = re.compile(r"(\]\()(?!https?://|#|mailto:)([^)#\s]+)")


def project() -> dict[str, Any]:
    """The content of project.toml."""
    return tomllib.loads((ROOT / "release/project.toml").read_text())


def stage(folder: str, to: Path) -> Path:
    """Copy the package in `folder` to `to`, with README, CHANGELOG and LICENSE. Returns the copy."""
    copy = to / folder.replace("/", "-")
    shutil.copytree(ROOT / folder, copy, ignore=NOT_COPIED)
    for name in ("CHANGELOG.md", "LICENSE"):
        shutil.copyfile(ROOT / name, copy / name)
    readme = copy / "README.md"
    readme.write_text(with_absolute_links(readme.read_text(), folder))
    return copy


def with_absolute_links(text: str, folder: str) -> str:
    """`text` with each link to a file of the repository as an address."""
    repository = project()["urls"]["Repository"]
    return LINK.sub(lambda at: at[1] + repository + posixpath.normpath(f"{folder}/{at[2]}"), text)


def add_python_metadata(copy: Path) -> None:
    """Add authors, keywords, classifiers and addresses to the copy's pyproject.toml."""
    about, file = project(), copy / "pyproject.toml"
    lines = [
        f"authors = [{{name = {json.dumps(about['author'])}}}]",
        f"keywords = {json.dumps(about['keywords'])}",
        f"classifiers = {json.dumps(about['python']['classifiers'])}",
        'license-files = ["LICENSE"]',
    ]
    readme = 'readme = "README.md"\n'
    text = file.read_text().replace(readme, readme + "\n".join(lines) + "\n", 1)
    urls = "".join(f"{name} = {json.dumps(url)}\n" for name, url in about["urls"].items())
    file.write_text(f"{text}\n[project.urls]\n{urls}")


def add_npm_metadata(copy: Path) -> None:
    """Make the copy's package.json that of a published package: addresses, and nothing that only development needs."""
    about, file = project(), copy / "package.json"
    package = json.loads(file.read_text())
    for name in ("private", "devDependencies", "scripts"):
        package.pop(name)
    package |= {
        "author": about["author"],
        "keywords": about["keywords"],
        "homepage": about["urls"]["Homepage"],
        "repository": {"type": "git", "url": f"git+{about['urls']['Repository']}"},
        "bugs": about["urls"]["Issues"],
        "files": [*package["files"], "CHANGELOG.md"],
    }
    file.write_text(json.dumps(package, indent=2) + "\n")


def add_gem_metadata(copy: Path) -> None:
    """Add the addresses and the changelog to the copy's gemspec."""
    urls, file = project()["urls"], copy / "volcano_locks.gemspec"
    metadata = {
        "documentation_uri": urls["Documentation"],
        "source_code_uri": urls["Repository"],
        "changelog_uri": urls["Changelog"],
        "bug_tracker_uri": urls["Issues"],
    }
    lines = [f'  spec.homepage = "{urls["Homepage"]}"', '  spec.files += ["CHANGELOG.md"]']
    lines += [f'  spec.metadata["{name}"] = "{url}"' for name, url in metadata.items()]
    text = file.read_text().rstrip()
    file.write_text(text.removesuffix("end") + "\n".join(lines) + "\nend\n")
