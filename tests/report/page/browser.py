"""A headless Chromium without a driver: one page in, the DOM after its scripts out."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="chromium is not installed (Debian: apt-get install chromium), so the page's own "
    "arithmetic is not run",
)


def dump_dom(page: Path, scratch: Path, fragment: str = "", width: int = 1280) -> str:
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
        f"--window-size={width},900",
        "--virtual-time-budget=4000",
        "--dump-dom",
        page.resolve().as_uri() + fragment,
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        timeout=120,
        check=True,
        env={**os.environ, "HOME": str(scratch)},
    )
    return done.stdout.decode("utf-8")
