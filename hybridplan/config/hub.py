"""A repo's config.json in the local Hugging Face cache, and the one download a user may ask for."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hybridplan.errors import InputError, MissingExtraError

_HASH = re.compile(r"[0-9a-f]{40}")


def cache_folder() -> Path:
    """Where huggingface_hub keeps repos: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def cached_config(repo: str) -> Path | None:
    """config.json of a cached repo: the snapshot that refs/main names, else the only one.

    Raises InputError where several snapshots are cached and none of them is main.
    """
    home = cache_folder() / f"models--{repo.replace('/', '--')}"
    try:
        revision = (home / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        revision = ""
    if _HASH.fullmatch(revision):
        config = home / "snapshots" / revision / "config.json"
        if config.is_file():
            return config
    found = sorted(home.glob("snapshots/*/config.json"))
    if len(found) > 1:
        raise InputError(
            f"{repo} is cached in {len(found)} revisions and refs/main names none of them; give "
            f"the path of one, such as {found[0]}"
        )
    return found[0] if found else None


def download_config(repo: str) -> Path:
    """Fetch config.json (and nothing else) into the local cache, through huggingface_hub.

    Honours HF_ENDPOINT and HF_TOKEN. Raises MissingExtraError, and InputError when the hub refuses.
    """
    # Telemetry would make the library fetch a list of coding agents too; one file was meant.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise MissingExtraError(
            "--download needs huggingface_hub: pip install 'hybridplan[hub]'"
        ) from error
    try:
        return Path(hf_hub_download(repo, "config.json"))
    except Exception as error:
        said = [line.strip(" .") for line in str(error).splitlines() if line.strip()]
        reason = ": ".join(said[:2]) or type(error).__name__
        raise InputError(f"config.json of {repo} could not be downloaded: {reason}") from error
