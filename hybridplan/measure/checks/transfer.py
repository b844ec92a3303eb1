"""Check 11: KV and state of n tokens to the host and back, and to a second card."""

from __future__ import annotations

import torch

from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.calibration import Constant
from hybridplan.ledger.checkpoints import checkpoint_bytes
from hybridplan.ledger.deployment import Deployment
from hybridplan.measure.context import Context, NoTimeError
from hybridplan.measure.result import Check, compared, skipped
from hybridplan.measure.timing import Timing

FAMILY = "transfer"
_PROBES = (4 << 20, 64 << 20)


def run(context: Context) -> list[Check]:
    """Contents first, then times predicted from two other sizes."""
    found = [_content(context)]
    try:
        context.timed()
    except NoTimeError as error:
        return [*found, skipped(FAMILY, "times", "host and device", str(error))]
    for name, to_device in (("host to device", True), ("device to host", False)):
        found += _link(context, name, to_device)
    return [*found, _peer(context)]


def _sizes(context: Context) -> dict[str, int]:
    """Bytes of a checkpoint, and of the KV and state of some lengths."""
    caches = model_caches(context.spec, Deployment("vllm"))
    state = checkpoint_bytes(caches)
    sizes = {"state": state} if state else {}
    for tokens in context.pick((1024, 8192), (1024,), (64,)):
        kv = sum(layer.token_bytes(tokens) for layer in caches)
        sizes[f"KV and state of {tokens:,} tokens"] = kv + state
    return sizes


def _pinned(context: Context) -> bool:
    """Whether host memory can be pinned."""
    return bool(context.device.type == "cuda")


def _content(context: Context) -> Check:
    size = max(_sizes(context).values())
    there = torch.randint(0, 255, (size,), dtype=torch.uint8, device=context.device)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=_pinned(context))
    host.copy_(there)
    back = torch.empty_like(there)
    back.copy_(host)
    wrong = int((back != there).sum())
    return compared(
        FAMILY, "content", f"bytes of {size:,} that came back different", 0, wrong, "B", 0.0,
        "device to host and back",
    )  # fmt: skip


def copy_time(context: Context, size: int, to_device: bool) -> Timing:
    """Time to copy ``size`` bytes between pinned host memory and the device."""
    timer = context.timed()
    device = torch.empty(size, dtype=torch.uint8, device=context.device)
    host = torch.ones(size, dtype=torch.uint8, pin_memory=_pinned(context))
    source, target = (host, device) if to_device else (device, host)
    return timer.eager(lambda: target.copy_(source, non_blocking=True))


def _link(context: Context, name: str, to_device: bool) -> list[Check]:
    small, large = (copy_time(context, size, to_device) for size in _PROBES)
    per_s = (_PROBES[1] - _PROBES[0]) / (large.seconds - small.seconds)
    floor_s = max(0.0, small.seconds - _PROBES[0] / per_s)
    key = f"link.{'in' if to_device else 'out'}"
    how = f"pinned memory, {_PROBES[0]:,} and {_PROBES[1]:,} B"
    context.constants[f"{key}_bytes_per_s"] = Constant(
        per_s, "bytes/s", per_s * max(small.spread, large.spread), how
    )
    context.constants[f"{key}_floor_s"] = Constant(floor_s, "s", None, how)
    found = []
    for what, size in _sizes(context).items():
        timing = copy_time(context, size, to_device)
        found.append(
            compared(FAMILY, f"{name}, {what}", f"{size:,} B of pinned memory",
                     1e3 * (floor_s + size / per_s), 1e3 * timing.seconds, "ms", 0.15,
                     f"floor and {per_s / 1e9:.1f} GB/s from copies of two other sizes",
                     spread=timing.spread)
        )  # fmt: skip
    return found


def _peer(context: Context) -> Check:
    """The longest of the sizes from this card to the next one and back."""
    if torch.cuda.device_count() < 2:
        return skipped(FAMILY, "GPU to GPU", "KV and state to a second card",
                       "one CUDA device is present")  # fmt: skip
    other = torch.device("cuda", (context.device.index + 1) % torch.cuda.device_count())
    timer = context.timed()
    what, size = list(_sizes(context).items())[-1]

    def there(number: int) -> Timing:
        near = torch.ones(number, dtype=torch.uint8, device=context.device)
        far = torch.empty(number, dtype=torch.uint8, device=other)
        return timer.eager(lambda: far.copy_(near, non_blocking=True))

    small, large = (there(n) for n in _PROBES)
    per_s = (_PROBES[1] - _PROBES[0]) / (large.seconds - small.seconds)
    floor_s = max(0.0, small.seconds - _PROBES[0] / per_s)
    context.constants["link.peer_bytes_per_s"] = Constant(
        per_s, "bytes/s", per_s * max(small.spread, large.spread), "device to device"
    )
    timing = there(size)
    return compared(
        FAMILY, "GPU to GPU", f"{what}, {size:,} B", 1e3 * (floor_s + size / per_s),
        1e3 * timing.seconds, "ms", 0.20, f"floor and {per_s / 1e9:.1f} GB/s from two other sizes",
        spread=timing.spread,
    )  # fmt: skip
