"""A headless Chromium without a driver: one page in, the DOM after its scripts out."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="chromium is not installed (Debian: apt-get install chromium), so the page's own "
    "arithmetic is not run",
)


def dump_dom(page: Path, scratch: Path) -> str:
    """The document of ``page`` as it stands once it has loaded and run, opened with no network."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={scratch / 'profile'}",
        "--window-size=1280,900",
        "--virtual-time-budget=4000",
        "--dump-dom",
        page.resolve().as_uri(),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        timeout=120,
        check=True,
        env={**os.environ, "HOME": str(scratch)},
    )
    return done.stdout.decode("utf-8")


def scripted(page: str, script: str) -> str:
    """The page with one more script that writes what it saw into <pre id="seen">."""
    page = re.sub(r"<meta http-equiv=[^>]*>", "", page)
    return page.replace("</body>", f'<pre id="seen" hidden></pre><script>{script}</script></body>')


def seen(page: str, script: str, folder: Path) -> Any:
    """What the script saw in the page."""
    return _seen(scripted(page, script), folder)


def seen_at(page: str, script: str, folder: Path, width: int) -> Any:
    """As ``seen``, in a window of that width (a frame, for a window has a least width)."""
    inside = escape(scripted(page, script))
    frame = f'<iframe id="frame" style="border:0;width:{width}px;height:900px" srcdoc="{inside}">'
    copying = """<script>document.getElementById("frame").addEventListener("load", (event) => {
  const seen = event.target.contentDocument.getElementById("seen").textContent;
  document.getElementById("seen").textContent = seen;
});</script>"""
    host = f'<!doctype html><body><pre id="seen" hidden></pre>{frame}</iframe>{copying}'
    return _seen(host, folder)


def _seen(page: str, folder: Path) -> Any:
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    found = re.search(r'<pre id="seen" hidden="">(.*?)</pre>', dump_dom(file, folder), re.DOTALL)
    assert found is not None
    assert found[1], "the page's script failed"
    return json.loads(unescape(found[1]))


# Opens everything, then measures: what sticks out of the window, and the smallest letters drawn.
WIDTHS = """
document.querySelectorAll("details").forEach((part) => { part.open = true; });
const wide = [...document.querySelectorAll("body *")].filter((e) =>
  !e.closest(".scroll, svg, .hidden, .skip, script, style") &&
  e.getBoundingClientRect().right > innerWidth + 1);
document.getElementById("seen").textContent = JSON.stringify({
  inner: innerWidth, scroll: document.documentElement.scrollWidth,
  wide: wide.map((e) => e.outerHTML.slice(0, 90)),
  letters: Math.min(...[...document.querySelectorAll("svg[role=img] text")].filter((t) =>
    t.getBoundingClientRect().width > 0).map((t) => 13 * t.getScreenCTM().a)),
});
"""
