"""Parameters of the one vision tower whose config says enough: Qwen3-VL's, in Qwen3.5 and later."""

from __future__ import annotations

from hybridplan.config.fields import Fields

KEYS = (
    "hidden_size",
    "intermediate_size",
    "depth",
    "out_hidden_size",
    "patch_size",
    "temporal_patch_size",
    "in_channels",
    "spatial_merge_size",
    "num_position_embeddings",
)


def qwen_tower_params(root: Fields) -> int:
    """Patch embedding, positions, blocks and merger, biases included; 0 where a key is missing.

    Exact against the published totals of Qwen3.5-0.8B to 397B-A17B. A tower with deepstack mergers
    is not counted.
    """
    if not root.has("vision_config"):
        return 0
    vision = root.section("vision_config")
    if not all(vision.has(key) for key in KEYS) or vision.data.get("deepstack_visual_indexes"):
        return 0
    h, i, depth, out, patch, frames, channels, merge, positions = (
        vision.whole(f"vision.{key}", key, most=1 << 24) for key in KEYS
    )
    block = 4 * h + (3 * h * h + 3 * h) + (h * h + h) + (2 * h * i + i + h)
    joined = merge * merge * h
    merger = 2 * h + joined * joined + joined + joined * out + out
    return channels * frames * patch * patch * h + h + positions * h + depth * block + merger
