"""Builds the site: stages the pages and what they link to, as they lie in the tree, then mkdocs.

Not here: whether links are right (mkdocs is strict, and tests/unit/docs looks at each).

    python docs/build_site.py        # needs the extra `docs`; the site is build/site/html
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
PATTERNS = ("*.md", "docs/**/*.md", "chaos/**/*.md", "k8s/**/*.md")


def pages(root: Path) -> list[Path]:
    """Return all pages of the site."""
    return sorted(path for pattern in PATTERNS for path in root.glob(pattern))


def stage(root: Path, into: Path) -> None:
    """Copy all pages, and each file that one of them links to."""
    wanted = set(pages(root))
    for page in tuple(wanted):
        for link in LINK.findall(page.read_text()):
            if not link.startswith("https://"):
                wanted.add((page.parent / link).resolve())
    for path in wanted:
        place = into / path.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def main() -> int:
    """Build it; return mkdocs' exit code."""
    shutil.rmtree(SITE, ignore_errors=True)
    stage(ROOT, SITE / "pages")
    shutil.copyfile(ROOT / "mkdocs.yml", SITE / "mkdocs.yml")
    shutil.copyfile(ROOT / "docs" / "site_hooks.py", SITE / "site_hooks.py")
    shutil.copyfile(ROOT / "docs" / "site_worker.js", SITE / "pages" / "site_worker.js")
    # Not --quiet: what is not logged is not counted by --strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    code = subprocess.run([*command, "-f", str(SITE / "mkdocs.yml")], check=False).returncode
    if code == 0:
        print(f"the site is {SITE / 'html' / 'docs' / 'start.html'}")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
