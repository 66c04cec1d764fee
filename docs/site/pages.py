"""Which documents become pages, and under which address: `docs/` is the root of the site, a README is an index.

Links between documents are rewritten to the new addresses. A link to a file that is no page leads to the repository; as
long as release/project.toml has no real address of it, the text stays without a link.
"""

import posixpath
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from release.staging import ROOT, project

SOURCES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/**/*.md", "docs/images/**/*", "spec/*.md"),
    *("spec/*.yaml", "sdks/*/README.md", "bench/README.md", "bench/results/*", "conformance/README.md"),
    *("deploy/README.md", "skills/*/SKILL.md"),
)
MOVED = {
    "sdks/python/README.md": "clients/python.md",
    "sdks/javascript/README.md": "clients/javascript.md",
    "sdks/ruby/README.md": "clients/ruby.md",
    "deploy/README.md": "guide/deploy.md",
    "conformance/README.md": "project/conformance.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changelog.md",
    "skills/volcano-locks/SKILL.md": "project/skill.md",
}
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<to>(?!https?://|#|mailto:)[^)\s]+)\)")
ATTRIBUTE = re.compile(r'(?P<name>src|srcset|href)="(?P<to>(?!https?://|#)[^"]+)"')
IN_NUMBERED_ITEM = re.compile(r"^ {3}(?=.)", re.MULTILINE)
"""What belongs to a numbered item is indented by 3 spaces in the repository; the generator of the site needs 4."""
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


def address(source: str) -> str:
    """Where the document of that path in the repository is on the site."""
    moved = MOVED.get(source, source.removeprefix("docs/"))
    return re.sub(r"README\.md$", "index.md", moved)


def documents() -> set[str]:
    """The paths in the repository of all files that the site has."""
    found = {str(path.relative_to(ROOT)) for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()}
    return {source for source in found if not source.startswith("docs/site/")}


def copy_pages(to: Path) -> None:
    """Write every document to the folder `to`, with its links rewritten."""
    sources = documents()
    for source in sources:
        target = to / address(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".md":
            target.write_text(rewritten((ROOT / source).read_text(), source, sources))
        else:
            shutil.copyfile(ROOT / source, target)


def rewritten(text: str, source: str, sources: set[str]) -> str:
    """The text of a document with the links of a page. Code blocks stay."""

    def relative(to: str) -> str | None:
        path, mark, anchor = to.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        for candidate in (there, f"{there}/README.md"):
            if candidate in sources:
                return posixpath.relpath(address(candidate), posixpath.dirname(address(source)) or ".") + mark + anchor
        if not (ROOT / there).exists():
            raise FileNotFoundError(f"{source} links to {to}, which does not exist")
        repository = project()["urls"]["Repository"]
        return None if (urlsplit(repository).hostname or "").endswith(".example") else repository + there

    def link(found: re.Match[str]) -> str:
        to = relative(found["to"])
        return f"{found['image']}[{found['text']}]({to})" if to else found["text"]

    def attribute(found: re.Match[str]) -> str:
        return f'{found["name"]}="{relative(found["to"]) or found["to"]}"'

    parts = FENCED.split(FRONT_MATTER.sub("", text))
    parts[::2] = [ATTRIBUTE.sub(attribute, LINK.sub(link, IN_NUMBERED_ITEM.sub("    ", part))) for part in parts[::2]]
    return "".join(parts)
