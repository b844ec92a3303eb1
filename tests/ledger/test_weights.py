"""Parameter counts against what was published with the weights."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from hybridplan.config import catalogue
from hybridplan.config.find import load, load_entry
from hybridplan.config.read import read_config, read_file
from hybridplan.errors import ConfigError
from hybridplan.ledger.weights import COMPONENTS, Weights, weights
from hybridplan.ledger.weights.parts import mixer_parts, mlp_parts
from hybridplan.ledger.weights.storage import Storage

# Repositories whose total is not that of the file's own repository: quantised ones, whose totals
# count packed words or were rounded, stand for the same model in bf16.
SAME_MODEL = {
    "qwen3.6-27b-nvfp4": "Qwen/Qwen3.5-27B",
    "qwen3.6-27b": "Qwen/Qwen3.5-27B",
    "nemotron-3-nano-30b-a3b-nvfp4": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nemotron-3-super-120b-a12b-nvfp4": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
    "nemotron-3.5-lightning-30b-a3b-nvfp4": "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16",
    "nemotron-3-ultra-550b-a55b-bf16": "nvidia/Nemotron-3-Labs-Ultra-Math-RL",
    "jamba-1.5-mini": "ai21labs/AI21-Jamba2-Mini",
    "minimax-m1": "MiniMaxAI/MiniMax-M1-40k",
    "hymba-1.5b-base": "nvidia/Hymba-1.5B-Instruct",
}

# Published minus counted, where the difference is not zero: the exact number, and why.
DIFFERENCES: dict[str, tuple[int, str]] = {
    "qwen3-next-80b-a3b-instruct": (
        1_650_471_424,
        "the repository holds an MTP layer (2.0 %) that this config does not mention",
    ),
    "qwen3.8-27b": (0, ""),
    "qwen3.8-flash-next": (
        51_701_789_971,
        "the per-layer n-gram table (28.7 %): ple_* sizes are null in the reconstructed file",
    ),
    "kimi-k3": (450_042_016, "vision tower and attention-residual weights (0.02 %)"),
    "glm-5.3-flash": (562_840_522, "vision tower, absent from the file (0.18 %)"),
    "lfm2.5-vl-1.6b": (426_285_296, "SigLIP vision tower and projector (26.7 %)"),
    "lfm2-8b-a1b": (-704, "router biases are buffers the total leaves out"),
    "nemotron-3-nano-30b-a3b-bf16": (-2_944, "router biases (23 x 128) are left out of the total"),
    "nemotron-3-nano-30b-a3b-nvfp4": (-2_944, "as the bf16 repository"),
    "nemotron-3-super-120b-a12b-nvfp4": (-20_992, "router biases (41 x 512) are left out"),
    "nemotron-3-ultra-550b-a55b-bf16": (-25_088, "router biases (49 x 512) are left out"),
    "nemotron-3.5-lightning-30b-a3b-nvfp4": (-2_944, "as the Nano"),
    "kimi-k2-instruct": (3_416, "router scale of 61 layers x 56 (below 1e-8)"),
    "deepseek-v3": (41_540_496, "fp32 scales of fp8 blocks are counted in the total (0.006 %)"),
    "mimo-v2-flash": (1_006_537_536, "three MTP layers the config does not size (0.32 %)"),
    "minimax-m3": (865_567_232, "vision tower, dropped by the package copy (0.20 %)"),
    "gemma-4-26b-a4b": (
        1_310_989_586,
        "vision tower (572,794,416) and a stored copy of the tied head (262,144 x 2,816): 4.9 %",
    ),
    "step-3.7-flash": (
        1_610_605_312,
        "vision tower; the package copy lacks vision_config and attention_other_setting (0.8 %)",
    ),
    "deepseek-v4.1-flash": (742_816_108, "vision tower and draft adapters (0.10 %)"),
    "rwkv7-2.9b": (94_617_600, "ranks of the small projections are not in the file (3.2 %)"),
}
# Totals that hold no draft layers although the config describes some.
WITHOUT_DRAFT = ("minimax-m2.7", "minimax-m3", "nemotron-3.5-lightning-30b-a3b-nvfp4")
# Differences above 0.5 % come from parts the file does not size.
INCOMPLETE = {
    "qwen3-next-80b-a3b-instruct",
    "qwen3.8-flash-next",
    "lfm2.5-vl-1.6b",
    "gemma-4-26b-a4b",
    "step-3.7-flash",
    "rwkv7-2.9b",
}


def _published(folder: Path) -> dict[str, int]:
    with (folder / "PARAMS_REFERENCE.csv").open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    return {
        row["model"].lower(): int(row["parameters_raw"])
        for row in rows
        if row["parameters_raw"].isdigit()
    }


PUBLISHED = _published(catalogue.folder())


def _repository(name: str, model_id: str) -> str:
    return SAME_MODEL.get(name, model_id.split(" ")[0]).lower()


COMPARED = [
    name
    for name, entry in catalogue.entries().items()
    if _repository(name, entry.model_id) in PUBLISHED
]


@pytest.mark.parametrize("name", COMPARED)
def test_published_total(name: str) -> None:
    entry = catalogue.entries()[name]
    counted = weights(load_entry(entry))
    ours = counted.total_params
    if name in WITHOUT_DRAFT:
        ours -= counted.draft_params
    published = PUBLISHED[_repository(name, entry.model_id)]
    assert published - ours == DIFFERENCES.get(name, (0, ""))[0]
    if name not in INCOMPLETE:
        assert abs(published - ours) <= 0.005 * published


def test_enough_models_are_compared() -> None:
    assert len(COMPARED) >= 60
    assert sum(1 for name in COMPARED if DIFFERENCES.get(name, (0, ""))[0] == 0) >= 40


def _parameter_check() -> list[tuple[str, str, int]]:
    text = (catalogue.folder() / "SOURCES.md").read_text(encoding="utf-8")
    section = text.split("## Parameter check")[1].split("## Layer and memory table")[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in section.splitlines()]
    return [
        (cells[0].split(" ")[0], cells[0], int(cells[2].replace(",", "")))
        for cells in rows
        if len(cells) == 5 and re.fullmatch(r"[\d,]+", cells[2])
    ]


# The check table's glm-4.5 figures include the MTP layer although the row does not say so.
MTP_UNSAID = ("glm-4.5", "glm-4.5-air")
CHECKED = [row for row in _parameter_check() if row[0] in catalogue.entries()]


@pytest.mark.parametrize("row", CHECKED, ids=[row[0] for row in CHECKED])
def test_analytic_count(row: tuple[str, str, int]) -> None:
    name, said, analytic = row
    spec = load(name)
    counted = weights(spec)
    ours = counted.params
    if "with 1 MTP" in said or name in MTP_UNSAID:
        ours += counted.draft_params
    if "no iHC" in said:
        places = (spec, *spec.layers)
        ours -= sum(place.extra_params.get("mixing_streams", 0) for place in places)
    assert ours == analytic


def test_the_parameter_check_is_read() -> None:
    assert len(CHECKED) == 36


def test_components_sum(configs_to_weigh: Path) -> None:
    counted = weights(read_file(configs_to_weigh))
    names = [component.name for component in counted.components]
    assert names == [name for name in COMPONENTS if name in names]
    assert sum(c.params for c in counted.components) == counted.total_params
    apart = counted.draft_params + counted.table_params + counted.vision_params
    assert counted.params == counted.total_params - apart
    assert counted.total_bytes == sum(c.bytes for c in counted.components)
    for component in counted.components:
        assert component.bytes > 0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "configs_to_weigh" in metafunc.fixturenames:
        folder = metafunc.config.getoption("--configs") or catalogue.folder()
        paths = sorted(folder.glob("*.json"))
        metafunc.parametrize("configs_to_weigh", paths, ids=[path.stem for path in paths])


# Published "A" figures count the embedding row, or the whole table; a wide band suffices.
ACTIVE = {
    "qwen3-30b-a3b": 3.0e9,
    "qwen3-235b-a22b": 21.6e9,
    "qwen3.5-35b-a3b": 3.0e9,
    "qwen3.5-397b-a17b": 16.4e9,
    "kimi-linear-48b-a3b-instruct": 3.1e9,
    "nemotron-3-nano-30b-a3b-bf16": 3.2e9,
    "nemotron-3-super-120b-a12b-nvfp4": 12.2e9,
    "nemotron-3-ultra-550b-a55b-bf16": 55e9,
    "deepseek-v3": 36.6e9,
    "deepseek-v4-flash": 13.3e9,
    "gpt-oss-120b": 5.1e9,
    "gpt-oss-20b": 3.6e9,
    "lfm2-8b-a1b": 1.56e9,
    "gemma-4-26b-a4b": 3.8e9,
    "mixtral-8x7b-v0.1": 12.8e9,
}


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters(name: str) -> None:
    assert weights(load(name)).active_params == pytest.approx(ACTIVE[name], rel=0.02)


def _bytes(name: str) -> Weights:
    return weights(load(name))


def test_bytes_of_plain_weights_are_two_each() -> None:
    counted = _bytes("qwen3.5-0.8b")
    assert counted.total_bytes == 2 * counted.total_params
    assert counted.method == "bfloat16"


# total_size of the repositories' model.safetensors.index.json, and how near the count comes.
STORED = {
    "gpt-oss-20b": (13_761_264_768, 0),
    "gpt-oss-120b": (65_248_815_744, 0),
    "deepseek-v3": (688_586_727_753, 0.003),
}


@pytest.mark.parametrize("name", STORED)
def test_bytes_of_quantised_repositories(name: str) -> None:
    stored, tolerance = STORED[name]
    assert _bytes(name).total_bytes == pytest.approx(stored, rel=tolerance)


def test_excluded_modules_keep_the_model_dtype() -> None:
    data = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 256,
        "max_position_embeddings": 128,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]},
    }

    def size(*excluded: str) -> dict[str, int]:
        data["quantization_config"]["modules_to_not_convert"] = list(excluded)  # type: ignore[index]
        counted = weights(read_config(data, file="f", name="n"))
        return {component.name: component.bytes for component in counted.components}

    attention, mlp = 2 * 4 * 64 * 64, 2 * 3 * 64 * 128
    assert size()["attention"] == attention
    assert size("self_attn")["attention"] == 2 * attention
    assert size("model.layers.0.self_attn.q_proj")["attention"] == attention + 64 * 64
    assert size("re:.*self_attn.*")["attention"] == 2 * attention
    assert size("model.layers.1.*") == size("*layers.1*")
    assert size("model.layers.1.*")["mlp"] == mlp + mlp // 2
    assert size("gate")["mlp"] == mlp
    with pytest.raises(ConfigError, match=r"f: .* 're:\(', which is no regular expression"):
        size("re:(")


def test_packed_words_of_a_mixed_repository() -> None:
    """NVIDIA's Qwen3.6-27B-NVFP4 stores two fp4 weights in a byte and leaves the MTP layer out.

    Its published element total, which counts packed bytes and no scales, is met only if exactly the
    right modules are taken for fp4.
    """
    spec = load("qwen3.6-27b-nvfp4")
    storage = Storage(spec)
    counted = weights(spec)
    four_bits = sum(
        part.params
        for layer in spec.layers
        for part in (
            *mixer_parts(layer.mixers[0], spec.hidden_size),
            *mlp_parts(layer.mlp, spec.hidden_size),
        )
        if storage.bits(part, layer.index) == 4.5
    )
    assert storage.head_bits() == 4.5
    four_bits += spec.vocab_size * spec.hidden_size
    elements = counted.total_params - counted.draft_params - four_bits // 2
    assert elements == PUBLISHED["nvidia/qwen3.6-27b-nvfp4"]
