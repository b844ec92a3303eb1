"""Every shipped config, or every one of --configs DIR, gives a spec that names its sources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridplan.config import catalogue
from hybridplan.config.find import load
from hybridplan.config.read import read_file
from hybridplan.config.spec import Mixer, ModelSpec
from hybridplan.ledger.pattern import layer_pattern

# Fields that decide bytes, by mixer kind.
DECIDE_MEMORY = {
    "attention": ("kv_heads", "key_dim", "value_dim"),
    "mla": ("kv_lora_rank", "rope_dim"),
    "compressed": ("head_dim", "rope_dim", "window_tokens", "compress_ratio"),
    "gdn": ("key_heads", "value_heads", "key_dim", "value_dim", "conv_kernel"),
    "kda": ("heads", "head_dim", "conv_kernel"),
    "lightning": ("heads", "head_dim"),
    "mamba1": ("inner", "state_dim", "conv_kernel"),
    "mamba2": ("heads", "head_dim", "state_dim", "groups", "conv_kernel"),
    "rglru": ("lru_width", "conv_kernel"),
    "rwkv7": ("heads", "head_dim"),
    "short_conv": ("channels", "conv_kernel"),
    "state": ("state_elements", "conv_channels", "conv_kernel"),
    "gmu": (),
}
MODEL_FIELDS = ("model.layers", "model.pattern", "model.dtype", "model.max_tokens")


def _deciding(mixer: Mixer) -> Iterator[str]:
    yield from (f"{mixer.kind}.{name}" for name in DECIDE_MEMORY[mixer.kind])
    if getattr(mixer, "window", None) is not None:
        yield "attention.window"
    if getattr(mixer, "kv_source_layer", None) is not None and mixer.window is not None:
        yield "attention.kv_source_layer"
    indexer = getattr(mixer, "indexer", None)
    if indexer is not None:
        yield "indexer.head_dim"
        if indexer.tokens_per_entry > 1 and indexer.form != "compressed":
            yield "indexer.tokens_per_entry"


def _resolves(data: Any, path: str) -> bool:
    for step in path.split("."):
        if not isinstance(data, dict) or step not in data:
            return False
        data = data[step]
    return True


def test_gives_a_spec(config_path: Path) -> None:
    spec = read_file(config_path)
    assert isinstance(spec, ModelSpec)
    assert [layer.index for layer in spec.layers] == list(range(len(spec.layers)))
    assert layer_pattern(spec.layers)
    assert spec.file == str(config_path)


def test_every_deciding_field_has_a_source(config_path: Path) -> None:
    spec = read_file(config_path)
    wanted = set(MODEL_FIELDS)
    for layer in spec.layers:
        for mixer in layer.mixers:
            wanted |= set(_deciding(mixer))
    assert sorted(wanted - spec.sources.keys()) == []


def test_exact_sources_stand_in_the_file(config_path: Path) -> None:
    data = json.loads(config_path.read_text(encoding="utf-8"))
    sources = read_file(config_path).sources
    paths = {s.key for s in sources.values() if s.how == "exact" and " " not in s.key}
    beside = ("layers", "hf_quant_config")
    missing = [p for p in paths if not _resolves(data, p) and not p.startswith(beside)]
    assert missing == []


def test_every_file_is_in_the_catalogue() -> None:
    files = {path.stem for path in catalogue.folder().glob("*.json")}
    assert files == set(catalogue.entries())


def test_confidence_is_one_of_the_documented_words() -> None:
    words = {
        "verbatim",
        "verbatim (second-hand)",
        "verbatim (package copy, trimmed)",
        "values-from-docs",
        "reconstructed",
        "not a checkpoint",
    }
    assert {entry.confidence for entry in catalogue.entries().values()} <= words


@pytest.mark.parametrize("name", sorted(catalogue.entries()))
def test_load_by_name(name: str) -> None:
    spec = load(name)
    assert spec.name == name
    assert spec.confidence == catalogue.entries()[name].confidence


def test_companion_quantisation_is_found() -> None:
    assert load("nemotron-3-super-120b-a12b-nvfp4").quantization is not None
    assert load("nemotron-3-ultra-550b-a55b-bf16").quantization is None


def test_reading_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    script = (
        "import sys, hybridplan.config.find as f; f.load('qwen3.5-0.8b'); "
        "print([m for m in ('pydantic', 'numpy', 'torch', 'transformers', 'huggingface_hub') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
