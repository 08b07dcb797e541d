"""A real Chromium: the machine's own, or the one that an npm package brings with its libraries.

The package is @sparticuz/chromium, made for places without any desktop: a headless build for Linux
on x86-64, the libraries that it needs besides the C library, and one font, each compressed with
Brotli, which Node can undo. Nothing of the package's own code is run.

Not here: how it is spoken to (browser.py).
"""

import base64
import hashlib
import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from installing import install, node_and_npm, only_installer

from delayd.runtime.cache import cache_directory

PACKAGE: Final = "@sparticuz/chromium"
VERSION: Final = "153.0.0"
SHA512: Final = (
    "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
)
NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""What it is called where a machine has one."""

ARCHIVES: Final = {"al2023.tar": "libraries", "fonts.tar": "fonts"}
"""In the package, and the folder that each is unpacked to."""

UNPACK: Final = """
const {createReadStream, createWriteStream} = require("node:fs");
const {createBrotliDecompress} = require("node:zlib");
const {pipeline} = require("node:stream/promises");
(async () => {
  for (const file of process.argv.slice(1)) {
    const to = createWriteStream(file.slice(0, -".br".length));
    await pipeline(createReadStream(file), createBrotliDecompress(), to);
  }
})();
"""

FONTS: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>{fonts}</dir>
  <cachedir>{cache}</cachedir>
</fontconfig>
"""


@dataclass(frozen=True, slots=True)
class Chromium:
    """The program, and what its environment needs."""

    program: Path
    environment: dict[str, str]


def find_chromium() -> Chromium:
    """The machine's own, else the package's; AssertionError if there is neither."""
    own = next(filter(None, map(shutil.which, NAMES)), None)
    if own is not None:
        return Chromium(Path(own), {})
    with only_installer(cache_directory(os.environ), "chromium") as folder:
        home = folder / VERSION
        if not home.exists():
            arriving = folder / "arriving"
            shutil.rmtree(arriving, ignore_errors=True)
            arriving.mkdir()
            _fetch(arriving)
            arriving.rename(home)
    return Chromium(
        home / "chromium",
        {
            "LD_LIBRARY_PATH": str(home / "libraries" / "lib"),
            "FONTCONFIG_FILE": str(home / "fonts.conf"),
        },
    )


def _fetch(arriving: Path) -> None:
    node, npm = node_and_npm()
    what = f"Chromium from the npm package {PACKAGE} (or have one in PATH: {', '.join(NAMES)})"
    pack = ["pack", "--ignore-scripts", f"--cache={arriving / 'npm'}", f"{PACKAGE}@{VERSION}"]
    install(what, [*npm, *pack], cwd=arriving)
    [package] = arriving.glob("*.tgz")
    found = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    assert found == SHA512, f"{PACKAGE} {VERSION} has the SHA-512 {found}, not {SHA512}"
    with tarfile.open(package) as tar:
        tar.extractall(arriving, filter="data")
    parts = arriving / "package" / "bin"
    files = [parts / f"{name}.br" for name in ("chromium", *ARCHIVES)]
    install("Chromium", [node, "-e", UNPACK, *files])
    for archive, folder in ARCHIVES.items():
        with tarfile.open(parts / archive) as tar:
            tar.extractall(arriving / folder, filter="data")
    (parts / "chromium").rename(arriving / "chromium").chmod(0o755)
    _fonts(arriving)
    package.unlink()
    for done in ("package", "npm"):
        shutil.rmtree(arriving / done)


def _fonts(arriving: Path) -> None:
    home = arriving.parent / VERSION
    (arriving / "fonts.conf").write_text(
        FONTS.format(fonts=home / "fonts" / "fonts", cache=home / "font-cache")
    )
