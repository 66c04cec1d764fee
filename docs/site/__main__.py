"""`python -m docs.site`: collect the pages, build the site into build/site/html, and check what it loads.

The build is strict: a link to a page or heading that does not exist fails. No page may load anything from another host.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from docs.site.http_reference import http_page
from docs.site.pages import copy_pages, documents, rewritten
from release.staging import ROOT

HERE = Path(__file__).parent
SITE = ROOT / "build/site"
PAGES, HTML = SITE / "pages", SITE / "html"
NODE_MODULES = ROOT / "sdks/javascript/node_modules"
MERMAID = re.compile(r'"https://unpkg\.com/mermaid@[^"]*"')
LOCAL_MERMAID = 'new URL("mermaid.tiny.js",document.querySelector("script[src*=\'javascripts/bundle\']").src).href'
LOADED = re.compile(
    r'<(?:script|img|iframe|source)[^>]+(?:src|srcset)="(?:https?:)?//|<link[^>]+href="https?://[^>]*stylesheet'
)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MODULE = re.compile(r"^# (\S+)$", re.MULTILINE)
REPEATED_HEADING = re.compile(r"#(?!property-)([\w-]+)-(\d+)\)")
PART = re.compile(
    r"^#{3,} (Parameters|Returns|Example|Extends|Extended by|Implements|Implementation of|Inherited from|Overrides|"
    r"Type Parameters|Type Declaration|Call Signature)$",
    re.MULTILINE,
)
TYPEDOC = (
    *("--plugin", "typedoc-plugin-markdown", "--readme", "none", "--name", "JavaScript client", "--disableSources"),
    *("--outputFileStrategy", "modules", "--hidePageHeader", "--hideBreadcrumbs", "--treatWarningsAsErrors"),
    *("--validation.notExported", "false"),
    *(
        "--entryPoints",
        "src/index.ts",
        "--entryPoints",
        "src/testing/index.ts",
        "--entryPoints",
        "src/integrations/*.ts",
    ),
    *("--sort", "source-order", "--excludeExternals", "--classPropertiesFormat", "table"),
    *("--interfacePropertiesFormat", "table", "--typeDeclarationFormat", "table"),
    *("--excludePrivate", "--excludeInternal", "--skipErrorChecking", "--parametersFormat", "table"),
)


def main() -> None:
    """Collect, build, check."""
    shutil.rmtree(SITE, ignore_errors=True)
    copy_pages(PAGES)
    write_references()
    (PAGES / "assets").mkdir()
    shutil.copyfile(HERE / "site.css", PAGES / "assets/site.css")
    shutil.copyfile(HERE / "zensical.toml", SITE / "zensical.toml")
    run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], SITE)
    serve_mermaid_from_the_site()
    check_hosts()
    print(f"{len(list(HTML.rglob('*.html')))} pages: {HTML.relative_to(ROOT)}/index.html")


def write_references() -> None:
    """Write the generated pages."""
    reference = PAGES / "reference"
    (reference / "http-api.md").write_text(http_page())
    python = (HERE / "python_reference.md").read_text()
    (reference / "python.md").write_text(rewritten(python, "docs/reference/python.md", documents()))
    ruby = subprocess.check_output(["ruby", HERE / "ruby_reference.rb"], text=True)
    (reference / "ruby.md").write_text(ruby)
    folder = reference / "javascript"
    run(["node", "node_modules/typedoc/bin/typedoc", *TYPEDOC, "--out", folder], NODE_MODULES.parent)
    for page in folder.rglob("*.md"):
        page.write_text(as_site_page(page.read_text()))


def as_site_page(text: str) -> str:
    """A page of typedoc with the title that programs import, and without headings for the parts of a method."""

    def title(found: re.Match[str]) -> str:
        name = found[1].removeprefix("integrations/").replace("_", "-")
        return "# JavaScript client" if name == "index" else f"# volcano-locks/{name}"

    numbered = REPEATED_HEADING.sub(r"#\1_\2)", text)  # Zensical numbers a repeated heading in another way
    return PART.sub(r"**\1**", MODULE.sub(title, numbered, count=1))


def serve_mermaid_from_the_site() -> None:
    """The theme loads the library of diagrams from another host, on pages with a diagram; ours is beside its script."""
    (bundle,) = (HTML / "assets/javascripts").glob("bundle.*.js")
    changed, count = MERMAID.subn(LOCAL_MERMAID, bundle.read_text())
    if count != 1:
        raise SystemExit(f"{bundle.name} names the library of diagrams {count} times, expected once")
    bundle.write_text(changed)
    shutil.copyfile(NODE_MODULES / "@mermaid-js/tiny/dist/mermaid.tiny.js", bundle.with_name("mermaid.tiny.js"))


def check_hosts() -> None:
    """Fail if a page loads a file from another host."""
    foreign = [str(page.relative_to(HTML)) for page in HTML.rglob("*.html") if LOADED.search(page.read_text())]
    if foreign:
        raise SystemExit(f"these pages load files from other hosts: {', '.join(foreign)}")


def run(command: list[str | Path], folder: Path) -> None:
    """Run a tool; if it fails, show what it printed and exit."""
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        printed = COLOUR.sub("", done.stdout + done.stderr)
        raise SystemExit(f"{' '.join(map(str, command[:4]))} …: exit code {done.returncode}\n{printed}")


main()
