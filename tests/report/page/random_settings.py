"""Random settings: every real model's own, then moved at random as a hand on the sliders would."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

from hybridplan.config.find import load
from hybridplan.ledger.deployment import Deployment
from hybridplan.report.page.of_model import of_model
from hybridplan.report.page.settings import Settings

MODELS = (
    "falcon-h1-1.5b-base",
    "falcon-mamba-7b",
    "gemma-3-27b-it",
    "gemma-4-26b-a4b",
    "granite-4.0-h-small",
    "illustrative-48",
    "jamba-1.5-large",
    "kimi-k3",
    "kimi-linear-48b-a3b-instruct",
    "lfm2-1.2b",
    "ling-2.6-flash",
    "llama-3.1-8b",
    "mimo-v2-flash",
    "minimax-text-01",
    "nemotron-3-nano-30b-a3b-nvfp4",
    "olmo-hybrid-7b",
    "plamo-2-1b",
    "qwen3.5-0.8b",
    "qwen3.6-27b-nvfp4",
    "zamba2-2.7b",
)

# Where rules bite that single moves seldom reach.
CORNERS: tuple[dict[str, Any], ...] = (
    {"window_layers": 7, "full_layers": 5, "draft_layers": 3, "drafts": 40, "batched_tokens": 16},
    {"kv_dtype": "fp8", "key_dim": 320, "tp": 1},
    {"kv_dtype": "fp8", "key_dim": 512, "window_key_dim": 512, "window_layers": 4},
    {"state_kind": "short_conv", "state_heads": 2048, "drafts": 1, "key_dim": 64, "kv_heads": 2},
    {"attention": "mla", "kv_dtype": "fp8", "key_dim": 320, "full_layers": 9, "state_layers": 0},
    {"full_layers": 8, "state_layers": 11, "window_layers": 0, "parallel": 0},
    {"full_layers": 8, "state_layers": 12, "window_layers": 0, "parallel": 0},
)


@cache
def start(model: str) -> Settings:
    return of_model(load(model), Deployment())


def moved(rng: random.Random) -> Settings:
    """A real model's settings with some of them changed."""
    base = start(rng.choice(MODELS))
    changes: dict[str, Any] = {
        "full_layers": rng.randint(0, 40),
        "window_layers": 0 if base.attention == "mla" else rng.choice([0, 0, rng.randint(1, 50)]),
        "state_layers": rng.randint(0, 60),
        "parallel": rng.choice([0, 0, 3, 100]),
        "kv_heads": rng.choice([1, 2, 4, 8, 16]),
        "query_heads": rng.choice([16, 32, 64, 24]),
        "key_dim": rng.choice([64, 96, 128, 192, 256, 320, 576]),
        "value_dim": rng.choice([64, 128, 256]),
        "window_tokens": rng.choice([128, 1024, 4096]),
        "window_kv_heads": rng.choice([1, 4, 8]),
        "window_key_dim": rng.choice([64, 128, 256]),
        "state_heads": rng.choice([16, 32, 48, 64, 128]),
        "state_key_heads": rng.choice([1, 2, 8, 16]),
        "state_key_dim": rng.choice([16, 64, 128, 256]),
        "state_value_dim": rng.choice([64, 128]),
        "conv_kernel": rng.choice([2, 3, 4]),
        "kv_dtype": rng.choice(
            ["bfloat16", "bfloat16", "fp8", "int8_per_token_head", "int4_per_token_head"]
        ),
        "state_dtype": rng.choice(["float32", "bfloat16"]),
        "conv_dtype": rng.choice(["float32", "bfloat16"]),
        "tp": rng.choice([1, 1, 2, 4, 8]),
        "drafts": rng.choice([0, 0, 1, 3, 7]),
        "draft_layers": rng.choice([0, 1, 3]),
        "prefix_caching": rng.random() < 0.7,
        "block_tokens": rng.choice([0, 0, 0, 16, 64, 96, 128, 544]),
        "batched_tokens": rng.choice([2048, 8192]),
        "context_tokens": rng.choice([1, 777, 4096, 131072, 1 << 20]),
        "memory_gib": rng.choice([8, 80, 640]),
    }
    chosen = rng.sample(sorted(changes), rng.randint(0, 8))
    picked = {name: changes[name] for name in chosen}
    if rng.random() < 0.25:
        picked |= rng.choice(CORNERS)
    if picked.get("attention", base.attention) == "mla":
        picked["window_layers"] = 0
    return replace(base, **picked)


def some(number: int, seed: int) -> list[Settings]:
    """Every model as it is, then random moves up to ``number``."""
    rng = random.Random(seed)
    own = [start(model) for model in MODELS]
    return own + [moved(rng) for _ in range(number - len(own))]
