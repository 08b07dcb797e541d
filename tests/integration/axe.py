"""axe-core, which looks for what keeps people from reading and using a page: from its npm package.

Not here: the pages, and the browser in which it runs.
"""

import base64
import hashlib
import os
import tarfile
from typing import Any, Final

from browser import Page
from installing import install, node_and_npm, only_installer

from delayd.runtime.cache import cache_directory

VERSION: Final = "4.14.1"
SHA512: Final = (
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)


def violations(page: Page) -> list[str]:
    """What axe finds in a page, each with the first element that it is about."""
    page.evaluate(_script())
    found: list[dict[str, Any]] = page.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then(({violations}) =>"
        " violations.map(({id, nodes}) => ({id, target: String(nodes[0].target)})))"
    )
    return [f"{each['id']}: {each['target']}" for each in found]


def _script() -> str:
    with only_installer(cache_directory(os.environ), "axe") as folder:
        home = folder / VERSION
        if not home.exists():
            _, npm = node_and_npm()
            pack = ["pack", "--ignore-scripts", f"--cache={folder / 'npm'}", f"axe-core@{VERSION}"]
            install("axe-core from npm", [*npm, *pack], cwd=folder)
            [package] = folder.glob("axe-core-*.tgz")
            found = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
            assert found == SHA512, f"axe-core {VERSION} has the SHA-512 {found}, not {SHA512}"
            with tarfile.open(package) as tar:
                tar.extractall(home, filter="data")
            package.unlink()
        return (home / "package" / "axe.min.js").read_text()
