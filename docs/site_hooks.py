"""What mkdocs is told in code: the anchors of headings are those that GitHub makes, and no page of
the site loads anything from another host."""

import re
from typing import Any

FOREIGN = re.compile(r'<script src="https?://[^"]*iframe-worker[^"]*"></script>')
WORKER = "site_worker.js"


def anchor(heading: str, separator: str = "-") -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    """Called by mkdocs before it builds."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Called by mkdocs with each page as it is written. ValueError if it would load something."""
    up = "../" * page.url.count("/")
    html, count = FOREIGN.subn(f'<script src="{up}{WORKER}"></script>', output)
    if count != 1 or re.search(r'<(script|link|img)\b[^>]*(src|href)="(https?:)?//', html):
        raise ValueError(f"{page.url} loads something from another host: see docs/site_hooks.py")
    return html
