"""The hand-written form: what it accepts, and what it says of everything else."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridplan.config.find import load
from hybridplan.config.spec import Attention, IllustrativeState, MoE, Window
from hybridplan.errors import ConfigError
from hybridplan.ledger.pattern import layer_pattern

Read = Callable[[dict[str, Any]], Any]

FORM: dict[str, Any] = {
    "model_type": "hybridplan",
    "name": "mine",
    "dtype": "bfloat16",
    "max_position_embeddings": 32768,
    "hidden_size": 2048,
    "vocab_size": 32000,
    "mixers": {
        "kda": {"kind": "kda", "heads": 16, "head_dim": 128, "conv_kernel": 4},
        "swa": {
            "kind": "attention",
            "heads": 16,
            "kv_heads": 2,
            "key_dim": 128,
            "value_dim": 64,
            "window": {"kind": "sliding", "tokens": 512},
        },
        "reader": {
            "kind": "attention",
            "heads": 16,
            "kv_heads": 2,
            "key_dim": 128,
            "value_dim": 64,
            "kv_source_layer": 1,
        },
        "mla": {
            "kind": "mla",
            "heads": 16,
            "kv_lora_rank": 512,
            "rope_dim": 0,
            "nope_dim": 128,
            "value_dim": 128,
            "indexer": {"head_dim": 128, "query_heads": 8, "tokens_per_entry": 4},
        },
    },
    "mlps": {
        "moe": {
            "kind": "moe",
            "experts": 64,
            "topk": 4,
            "intermediate": 512,
            "dense_beside": {"kind": "dense", "intermediate": 1024},
        }
    },
    "layers": [
        {"mixers": ["kda"], "mlp": "moe"},
        {"mixers": ["swa", "kda"], "mlp": "moe"},
        {"mixers": ["reader"]},
        {"mixers": [], "mlp": "moe", "repeat": 2},
        {"mixers": ["mla"]},
    ],
}


def test_everything_it_can_say(read: Read) -> None:
    spec = read(FORM)
    assert spec.name == "mine"
    assert layer_pattern(spec.layers) == "L(S+L)fEEF"
    swa = spec.layers[1].mixers[0]
    assert isinstance(swa, Attention)
    assert swa.window == Window("sliding", 512)
    assert spec.layers[5].mixers[0].indexer.tokens_per_entry == 4
    mlp = spec.layers[0].mlp
    assert isinstance(mlp, MoE)
    assert mlp.dense_beside.intermediate == 1024


def test_repeat_repeats_the_whole_list(read: Read) -> None:
    form = FORM | {"layers": [{"mixers": ["kda"], "repeat": 3}, {"mixers": ["mla"]}], "repeat": 5}
    assert layer_pattern(read(form).layers) == "LLLF x 5"


def test_the_illustrative_model() -> None:
    spec = load("illustrative-48")
    assert layer_pattern(spec.layers) == "LLLF x 12"
    state, attention = spec.layers[0].mixers[0], spec.layers[3].mixers[0]
    assert isinstance(state, IllustrativeState)
    assert isinstance(attention, Attention)
    assert state.state_elements * 4 == 2 << 20
    assert state.conv_channels == 0
    assert attention.kv_heads * (attention.key_dim + attention.value_dim) * 2 == 2 << 10
    assert (spec.state_dtype, spec.max_tokens) == ("float32", 262144)


def at(path: str, value: Any) -> dict[str, Any]:
    form = copy.deepcopy(FORM)
    target: Any = form
    *steps, last = path.split(".")
    for step in steps:
        target = target[int(step) if step.isdigit() else step]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return form


BAD: dict[str, tuple[str, Any, str]] = {
    "missing dtype": ("dtype", None, "dtype: "),
    "missing layers": ("layers", None, "layers: "),
    "unknown key": ("head_dim", 128, "head_dim: "),
    "number as string": ("mixers.kda.heads", "16", "mixers.kda.heads: "),
    "fraction": ("mixers.kda.heads", 16.0, "mixers.kda.heads: "),
    "boolean": ("mixers.kda.heads", True, "mixers.kda.heads: "),
    "zero": ("mixers.kda.heads", 0, "mixers.kda.heads: "),
    "negative": ("mixers.kda.conv_kernel", -1, "mixers.kda.conv_kernel: "),
    "absurd": ("mixers.kda.heads", 10**18, "mixers.kda.heads: "),
    "missing field": ("mixers.kda.head_dim", None, "mixers.kda.head_dim: "),
    "unknown field": ("mixers.kda.colour", 1, "mixers.kda.colour: "),
    "unknown kind": ("mixers.kda.kind", "xlstm", "mixers.kda.kind must be one of"),
    "no kind": ("mixers.kda.kind", None, "mixers.kda.kind must be one of"),
    "mlp as mixer": ("mixers.kda.kind", "dense", "mixers.kda.kind must be one of"),
    "mixer is a list": ("mixers.kda", [1], "mixers.kda: "),
    "unknown mixer": ("layers.0.mixers", ["gdn"], 'layers.0 names the mixer "gdn"'),
    "unknown MLP": ("layers.0.mlp", "big", 'layers.0 names the MLP "big"'),
    "no layers": ("layers", [], "layers: "),
    "absurd repeat": ("repeat", 10**18, "repeat: "),
    "too many layers": ("repeat", 4096, "make 24576 layers"),
    "window without tokens": ("mixers.swa.window", {"kind": "sliding"}, "mixers.swa.window"),
    "unknown window": ("mixers.swa.window.kind", "round", "mixers.swa.window"),
    "heads do not divide": ("mixers.swa.kv_heads", 3, "16 heads are not a multiple of 3"),
    "reads a later layer": ("mixers.reader.kv_source_layer", 4, "which does not precede it"),
    "unknown dtype": ("dtype", "fp8", "dtype: "),
}


@pytest.mark.parametrize("case", BAD)
def test_faults_name_their_place(case: str, read: Read) -> None:
    path, value, wanted = BAD[case]
    with pytest.raises(ConfigError, match=re.escape(wanted)) as caught:
        read(at(path, value))
    assert caught.value.sentence.startswith("config.json: ")


def test_the_example_in_the_docs(read: Read) -> None:
    page = Path(__file__).parents[2] / "docs" / "configs.md"
    blocks = re.findall(r"```json\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        assert read(json.loads(block)).layers
