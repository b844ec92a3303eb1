"""From what a user writes to a ModelSpec: a catalogue name, a file, a folder, a cached repo."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hybridplan.config.catalogue import Entry, entries
from hybridplan.config.read import read_file
from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError

_REPO = re.compile(r"[\w.-]+/[\w.-]+")


def load(name: str | os.PathLike[str], *, download: bool = False) -> ModelSpec:
    """The spec of a catalogue name, a config.json, a model folder, or a repo in the local cache.

    ``download``: fetch config.json of a repo that is nowhere on this machine (needs the hub extra).
    Without it nothing touches the network. Raises InputError, and ConfigError for a bad file.
    """
    text = os.fspath(name)
    if not text.strip():
        raise InputError("the model name is empty; give a catalogue name or a config.json")
    path = _path(text)
    if path.suffix == ".gguf" and _exists(path):
        raise InputError(_gguf_sentence(path))
    if path.suffix == ".json" or _exists(path):
        found = _from_path(path, text)
        if found is not None:
            return found
    entry = in_catalogue(text)
    if entry is not None:
        return load_entry(entry)
    if _REPO.fullmatch(text):
        from hybridplan.config.hub import cached_config, download_config

        config = cached_config(text)
        if config is None and download:
            config = download_config(text)
        if config is not None:
            return read_file(config, name=text)
    raise InputError(_nearest_sentence(text))


def load_entry(entry: Entry) -> ModelSpec:
    """The spec of a shipped config, with the confidence of its source."""
    spec = read_file(entry.path, name=entry.name, companion=entry.hf_quant or _NOWHERE)
    return replace(spec, name=entry.name, confidence=entry.confidence)


_NOWHERE = Path(os.devnull) / "none"


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def _gguf_sentence(path: Path) -> str:
    return (
        f"{path} holds GGUF, whose metadata is not a config.json; give the config.json of the "
        "model it was made from"
    )


def _exists(path: Path) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:
        return False


def _from_path(path: Path, text: str) -> ModelSpec | None:
    """The spec of a file or model folder; None for a folder that is merely named like a model."""
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        is_folder = False
    if not is_folder:
        return read_file(path)
    config = path / "config.json"
    if os.path.lexists(config):
        return read_file(config)
    try:
        names = [child.name for child in path.iterdir()]
    except OSError as error:
        raise InputError(f"the folder {path} cannot be read: {error.strerror}") from error
    if any(child.endswith(".gguf") for child in names):
        raise InputError(_gguf_sentence(path))
    if os.sep in text or in_catalogue(text) is None:
        raise InputError(f"the folder {path} holds no config.json")
    return None


def plain(name: str) -> str:
    """A name with case and punctuation gone: ``Qwen3.5-0.8B`` and ``qwen3_5_0.8b`` are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def in_catalogue(text: str) -> Entry | None:
    """The entry a user means: its name, its hub id, or a beginning that only one entry has."""
    catalogue = entries()
    wanted = plain(text)
    if "/" in text:
        same = [e for e in catalogue.values() if plain(_hub_id(e)) == wanted]
        return min(same, key=lambda e: len(e.name), default=None)
    for spelling in (lambda e: e.name, lambda e: _hub_id(e).rpartition("/")[2]):
        for entry in catalogue.values():
            if plain(spelling(entry)) == wanted:
                return entry
    starts = [e for e in catalogue.values() if wanted and plain(e.name).startswith(wanted)]
    return starts[0] if len(starts) == 1 else None


def _hub_id(entry: Entry) -> str:
    return entry.model_id.split(" ")[0]


def nearest(text: str, names: Iterable[str]) -> list[str]:
    """The three names closest to what was written: as a whole, or to how they begin."""
    from difflib import SequenceMatcher

    wanted = plain(text.rpartition("/")[2])

    def alike(candidate: str) -> float:
        return SequenceMatcher(None, wanted, candidate, autojunk=False).ratio()

    def score(name: str) -> tuple[float, float]:
        candidate = plain(name)
        whole = alike(candidate)
        return max(whole, alike(candidate[: len(wanted)])), whole

    return sorted(names, key=score, reverse=True)[:3]


def _nearest_sentence(text: str) -> str:
    close = ", ".join(nearest(text[:200], entries()))
    fetch = "; --download looks for it on the hub" if _REPO.fullmatch(text) else ""
    return (
        f"{text[:120]!r} is no file, no folder, no catalogue name and no repo in the local hub "
        f"cache; the closest names are {close} (hybridplan models lists all){fetch}"
    )
