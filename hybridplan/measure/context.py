"""What every check gets: the model, the device, the timer, the gates, and where results go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from hybridplan.config.spec import (
    Attention,
    DenseMLP,
    GatedDeltaNet,
    KimiDelta,
    LatentAttention,
    Layer,
    Lightning,
    Mamba2,
    Mixer,
    ModelSpec,
    ShortConv,
)
from hybridplan.ledger.calibration import Constant
from hybridplan.measure.attention import AttentionLayer, attention_layer, first_attention
from hybridplan.measure.gates import Gates
from hybridplan.measure.linear import LinearLayer, linear_layer
from hybridplan.measure.probe import Rates
from hybridplan.measure.result import Check, Device, Series
from hybridplan.measure.timemodel import Fit, StepPoint, fit
from hybridplan.measure.timing import Timer

T = TypeVar("T")


@dataclass
class Context:
    """``spec`` is the real model; ``shapes`` the one that kernels run: tiny on a CPU."""

    spec: ModelSpec
    shapes: ModelSpec
    device: Any
    card: Device
    quick: bool
    gates: Gates
    timer: Timer | None
    rates: Rates | None
    weights: Path | None
    say: Callable[[str], None]
    series: list[Series] = field(default_factory=list)
    points: list[StepPoint] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    layers: str = ""

    @property
    def gpu(self) -> bool:
        """Whether there is a device to time."""
        return self.timer is not None

    def pick(self, full: T, quick: T, cpu: T) -> T:
        """The value for this kind of run."""
        if not self.gpu:
            return cpu
        return quick if self.quick else full

    @property
    def linear(self) -> LinearLayer | None:
        """The model's first recurrent mixer that a kernel here runs."""
        found = (linear_layer(m) for layer in self.shapes.layers for m in layer.mixers)
        return next((layer for layer in found if layer is not None), None)

    @property
    def attention(self) -> AttentionLayer | None:
        """The model's attention that a kernel here runs."""
        return first_attention(self.shapes)

    @property
    def conv(self) -> tuple[int, int] | None:
        """Channels and taps of the convolution beside the recurrent mixer."""
        for layer in self.shapes.layers:
            for mixer in layer.mixers:
                found = conv_shape(mixer)
                if found is not None:
                    return found
        return None

    def free_bytes(self) -> int:
        """Device memory that can be allocated now."""
        import torch

        if self.device.type != "cuda":
            return 1 << 30
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])

    def time_model(self) -> Fit:
        """Fitted over all steps measured so far, no constant faster than the card's ceilings.

        Raises InputError with too few steps.
        """
        return fit(self.points, self.rates.least_seconds() if self.rates else None)

    def timed(self) -> Timer:
        """The timer. Raises NoTimeError on a CPU."""
        if self.timer is None or self.rates is None:
            raise NoTimeError("times need a GPU")
        return self.timer


class NoTimeError(Exception):
    """A time was asked for where none can be taken."""


def kernel_missing(spec: ModelSpec) -> str:
    """A sentence on why a model has no recurrent layer to run here."""
    mixers = [m for layer in spec.layers for m in layer.mixers]
    kinds = sorted({m.kind for m in mixers if attention_layer(m) is None})
    if not kinds:
        return f"{spec.name} has no recurrent layer"
    return f"no kernel here runs a recurrent state of {', '.join(kinds)}"


def conv_shape(mixer: Mixer) -> tuple[int, int] | None:
    """(channels, taps) of a mixer's short convolution, None where it has none."""
    layer = linear_layer(mixer)
    if isinstance(mixer, ShortConv):
        return mixer.channels, mixer.conv_kernel
    if isinstance(mixer, (GatedDeltaNet, KimiDelta)) and layer is not None:
        return layer.channels, mixer.conv_kernel
    if isinstance(mixer, Mamba2) and layer is not None:
        inner = layer.HV * layer.V
        return (layer.channels if mixer.conv_over_groups else inner), mixer.conv_kernel
    return None


def tiny(spec: ModelSpec) -> ModelSpec:
    """The model's first layers of each kind with heads that the interpreter gets through."""
    kept: list[Layer] = []
    seen: set[str] = set()
    for layer in spec.layers:
        kinds = {m.kind for m in layer.mixers}
        if kinds - seen or len(kept) < 2:
            kept.append(layer)
            seen |= kinds
    layers = tuple(
        replace(
            layer,
            index=i,
            mixers=tuple(_tiny_mixer(m) for m in layer.mixers),
            mlp=replace(layer.mlp, intermediate=64) if isinstance(layer.mlp, DenseMLP) else None,
        )
        for i, layer in enumerate(kept)
    )
    return replace(spec, layers=layers, hidden_size=64, vocab_size=128, draft_layers=())


def _tiny_mixer(mixer: Mixer) -> Mixer:
    if isinstance(mixer, GatedDeltaNet):
        groups = min(2, mixer.value_heads // mixer.key_heads)
        return replace(mixer, key_heads=1, value_heads=groups, key_dim=32, value_dim=16)
    if isinstance(mixer, (KimiDelta, Lightning)):
        return replace(mixer, heads=2, head_dim=32)
    if isinstance(mixer, Mamba2):
        return replace(mixer, heads=2, head_dim=16, state_dim=16, groups=1)
    if isinstance(mixer, ShortConv):
        return replace(mixer, channels=64)
    if isinstance(mixer, Attention):
        return replace(mixer, heads=4, kv_heads=2, key_dim=32, value_dim=32)
    if isinstance(mixer, LatentAttention):
        return replace(mixer, heads=4, kv_lora_rank=32, rope_dim=16, nope_dim=16, value_dim=16)
    return mixer


Run = Callable[[Context], list[Check]]
