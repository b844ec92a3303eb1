"""Bits of a stored weight: what the checkpoint's quantisation says of one module."""

from __future__ import annotations

import re
from fnmatch import translate

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import ConfigError
from hybridplan.ledger.dtypes import element_bytes
from hybridplan.ledger.weights.parts import Part

_PREFIXES = (
    "model.layers",
    "model.language_model.layers",
    "language_model.model.layers",
    "backbone.layers",
)
_HOMES = {
    "attention": ("self_attn", "mixer"),
    "recurrent": ("linear_attn", "self_attn", "mixer", "mamba"),
    "mlp": ("mlp", "mixer", "feed_forward"),
    "experts": ("mlp", "mixer", "block_sparse_moe", "feed_forward"),
    "shared_experts": ("mlp", "mixer", "block_sparse_moe"),
}
_SINGULAR = {"shared_experts": ("shared_experts", "shared_expert")}


class Storage:
    """Answers how many bits one weight of a part takes, from the checkpoint's own lists."""

    def __init__(self, spec: ModelSpec) -> None:
        self.plain_bits = 8 * element_bytes(spec.dtype)
        self.scheme = spec.quantization
        excluded = self.scheme.excluded if self.scheme else ()
        self.literal = {name for name in excluded if not _is_pattern(name)}
        self.patterns = [_compiled(name, spec.file) for name in excluded if _is_pattern(name)]
        overrides = self.scheme.overrides if self.scheme else ()
        self.overrides = {name: bits for name, bits in overrides if not _is_pattern(name)}

    def bits(self, part: Part, layer: int, draft: int | None = None) -> float:
        """Bits of one weight, scales included. ``draft``: number of the draft layer it is in."""
        scheme = self.scheme
        if scheme is None or not part.linear:
            return self.plain_bits
        names = list(_names(part, layer, draft))
        if self.overrides:
            return next((self.overrides[n] for n in names if n in self.overrides), self.plain_bits)
        if part.component != "experts" and scheme.experts_only:
            return self.plain_bits
        if any(self._excluded(name) for name in names):
            return self.plain_bits
        if part.component == "experts" and scheme.expert_bits is not None:
            return scheme.expert_bits + scheme.expert_scale_bits_per_weight
        return scheme.weight_bits + scheme.scale_bits_per_weight

    def head_bits(self) -> float:
        """The output head stays in the model dtype unless the checkpoint names it."""
        return self.overrides.get("lm_head", self.plain_bits)

    def _excluded(self, name: str) -> bool:
        if self.literal:
            words = name.split(".")
            for start in range(len(words)):
                for end in range(start + 1, len(words) + 1):
                    if ".".join(words[start:end]) in self.literal:
                        return True
        return any(pattern.match(name) for pattern in self.patterns)


def _names(part: Part, layer: int, draft: int | None) -> list[str]:
    prefixes = [f"{prefix}.{layer}" for prefix in _PREFIXES]
    if draft is not None:
        prefixes.append(f"mtp.layers.{draft}")
    modules = _SINGULAR.get(part.module, (part.module,))
    return [
        f"{prefix}.{home}.{module}"
        for prefix in prefixes
        for home in _HOMES.get(part.component, ("mlp",))
        for module in modules
    ]


def _is_pattern(name: str) -> bool:
    return name.startswith("re:") or any(char in name for char in "*?[")


def _compiled(name: str, file: str) -> re.Pattern[str]:
    """A name list's pattern. ``re:`` is a regular expression; the rest are shell patterns."""
    try:
        return re.compile(name[3:] if name.startswith("re:") else translate(name))
    except re.error as error:
        raise ConfigError(
            f"{file}: the quantisation's list of modules holds {name[:60]!r}, which is no regular "
            f"expression: {error}"
        ) from error
