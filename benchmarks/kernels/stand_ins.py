"""What vLLM's vendored linear-attention ops need of the rest of vLLM, so that they run alone."""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
import types
from typing import Any

import torch
import triton
import triton.language as tl


def vllm_ops(name: str) -> Any:
    """A module of vLLM's vendored ops. Raises ImportError where vLLM is not on the path."""
    if "vllm.triton_utils" not in sys.modules:
        _stand_in()
    return importlib.import_module(f"vllm.third_party.flash_linear_attention.ops.{name}")


class _Platform:
    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: name in ("is_cuda", "is_cuda_alike")


class _CustomOp(torch.nn.Module):
    @classmethod
    def register(cls, _: str) -> Any:
        return lambda made: made


def _to_device(x: torch.Tensor, *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return x.to(device, dtype)


def _module(name: str, **contents: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    for key, value in contents.items():
        setattr(made, key, value)
    sys.modules[name] = made
    return made


def _stand_in() -> None:
    import vllm  # a namespace that holds third_party only

    for part in ("", ".ops"):
        where = [f"{p}/third_party/flash_linear_attention{part.replace('.', '/')}"
                 for p in vllm.__path__]  # fmt: skip
        _module(f"vllm.third_party.flash_linear_attention{part}", __path__=where)
    _module("vllm.model_executor", __path__=[])
    _module("vllm.model_executor.custom_op", CustomOp=_CustomOp)
    _module("vllm.utils", __path__=[])
    _module("vllm.utils.math_utils", RCP_LN2=1 / math.log(2), cdiv=triton.cdiv,
            next_power_of_2=triton.next_power_of_2)  # fmt: skip
    _module("vllm.utils.gpu_sync_debug", gpu_sync_allowed=contextlib.nullcontext)
    _module("vllm.utils.torch_utils", async_tensor_h2d=_to_device)
    _module("vllm.platforms", current_platform=_Platform())
    device = tl.extra.cuda.libdevice
    _module("vllm.triton_utils", triton=triton, tl=tl, tldevice=device)
