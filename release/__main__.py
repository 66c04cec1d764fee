"""`python -m release FOLDER`: build the packages twice, compare them, check them, and leave them in FOLDER."""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from release.packages import build, run
from release.staging import ROOT, project

NPM_TOOLS = ROOT / "sdks/javascript/node_modules/.bin"


def main() -> None:
    """Build, compare and check; the exit code is 0 if all packages can be published."""
    out = Path(sys.argv[1]).resolve()
    for old in out.glob("volcano*"):
        old.unlink()
    files = build(out)
    with tempfile.TemporaryDirectory() as folder:
        again = {file.name: digest(file) for file in build(Path(folder))}
    differing = [file.name for file in files if again.get(file.name) != digest(file)]
    if differing:
        raise SystemExit(f"a second build has other bytes: {', '.join(differing)}")
    check(out)
    for file in files:
        print(f"{digest(file)[:16]}  {file.stat().st_size:>9,}  {file.relative_to(out.parent)}")
    host = urlsplit(project()["urls"]["Repository"]).hostname or ""
    if host.endswith(".example"):
        print(f"not ready to publish: release/project.toml has addresses on the reserved host {host}")


def check(out: Path) -> None:
    """Check the packages in `out` with the tools of their registries."""
    python = [str(file) for file in out.glob("*.whl")] + [str(file) for file in out.glob("volcano_locks*.tar.gz")]
    (tarball,) = out.glob("*.tgz")
    (gem,) = out.glob("*.gem")
    run([sys.executable, "-m", "twine", "check", "--strict", *python], ROOT)
    run([NPM_TOOLS / "publint", "--strict", tarball], ROOT)
    run([NPM_TOOLS / "attw", tarball, "--profile", "node16"], ROOT)
    described = subprocess.check_output(["gem", "specification", gem, "metadata"], text=True)
    if "changelog_uri" not in described:
        raise SystemExit(f"{gem.name} does not name the changelog: {described}")


def digest(file: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


main()
