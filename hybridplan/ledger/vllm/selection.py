"""Which attention backend vLLM picks for a layer on a GPU generation.

Source: vLLM 0.33 ``platforms/cuda.py`` (``_get_backend_priorities``) and what each backend refuses
in ``validate_configuration``. FlashInfer, FlashMLA and FlashAttention 3 and 4 are taken as
installed, as in the published images; the sparse MLA kernel of FlashAttention 4 is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hybridplan.errors import RefusalError
from hybridplan.ledger.vllm.backends import Backend, on_generation
from hybridplan.ledger.vllm.options import Generation

_MLA_WIDTHS = (320, 512, 576)
_GENERATIONS: dict[str, tuple[Generation, ...]] = {
    "FLASH_ATTN_MLA": ("sm90",),
    "FLASHMLA": ("sm90", "sm100"),
    "FLASHINFER_MLA": ("sm100",),
    "TOKENSPEED_MLA": ("sm100",),
    "CUTLASS_MLA": ("sm100",),
    "FLASH_ATTN_MLA_SPARSE": ("sm90",),
    "FLASHMLA_SPARSE": ("sm90", "sm100"),
    "FLASHINFER_MLA_SPARSE_SM90": ("sm90",),
    "FLASHINFER_MLA_SPARSE_SM120": ("sm120",),
    "FLASHINFER_MLA_SPARSE": ("sm100",),
}
_WITHOUT_DCP = (
    "TRITON_ATTN",
    "FLEX_ATTENTION",
    "FLASH_ATTN_MLA_SPARSE",
    "FLASHINFER_MLA_SPARSE_SM90",
)
_FLASH_ATTN_4 = ("sm90", "sm100")
_UNQUANTISED = ("auto", "bfloat16", "float16")
_FP8 = ("fp8",)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a layer needs: its model's dtype, the KV dtype, the width of a head or latent.

    ``heads`` are query heads per rank; ``nope_dim`` of MLA; ``block_tokens`` is the user's
    ``--block-size`` or None; ``dcp`` the ranks that share a context.
    """

    generation: Generation
    cache_dtype: str
    model_dtype: str
    width: int
    latent: bool = False
    sparse: bool = False
    rope: bool = True
    sinks: bool = False
    non_causal: bool = False
    heads: int = 0
    nope_dim: int = 0
    block_tokens: int | None = None
    dcp: int = 1

    @property
    def quantised(self) -> bool:
        """Whether the KV dtype is not a plain 16-bit one."""
        return self.cache_dtype not in _UNQUANTISED


def select(ask: Ask, wanted: str | None = None) -> tuple[Backend, str]:
    """The backend and the KV dtype it stores. ``wanted`` skips the choice, not the checks.

    Raises RefusalError with every candidate's reason where none serves the layer.
    """
    names = [wanted] if wanted is not None else priorities(ask)
    reasons = []
    for name in names:
        reason = refusal(name, ask)
        if reason is None:
            stored = stored_dtype(name, ask.cache_dtype)
            return _narrowed(on_generation(name, ask.generation, stored), ask), stored
        reasons.append(f"{name}: {reason}")
    kind = "sparse MLA" if ask.sparse else "MLA" if ask.latent else "attention"
    raise RefusalError(
        f"no attention backend serves {kind} of width {ask.width} with KV dtype {ask.cache_dtype} "
        f"on {ask.generation} ({'; '.join(reasons)})"
    )


def _narrowed(backend: Backend, ask: Ask) -> Backend:
    """FlashAttention 4 reads pages of one size only (``_get_fa4_hd256_block_size``)."""
    if backend.name != "FLASH_ATTN":
        return backend
    if ask.generation == "sm100" and ask.width == 256:
        return replace(backend, kernel_blocks=(128,))
    if ask.generation == "sm90" and ask.width == 512 and ask.quantised:
        return replace(backend, kernel_blocks=(64,))
    return backend


def priorities(ask: Ask) -> list[str]:
    """Candidates in the order vLLM tries them."""
    if not ask.latent:
        order = ["FLASH_ATTN", "FLASHINFER"]
        if ask.generation == "sm100" and not ask.non_causal:
            order.reverse()
        return [*order, "TRITON_ATTN"]
    if not ask.sparse:
        return {
            "sm90": ["FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA"],
            "sm100": ["FLASHINFER_MLA", "CUTLASS_MLA", "FLASHMLA", "TRITON_MLA"],
        }.get(ask.generation, ["TRITON_MLA"])
    if ask.generation == "sm100":
        order = ["FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE"]
        return order[::-1] if ask.quantised or ask.heads <= 16 else order
    if ask.generation == "sm120":
        return ["FLASHINFER_MLA_SPARSE_SM120"]
    order = ["FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE"]
    flashinfer = "FLASHINFER_MLA_SPARSE_SM90"
    return [flashinfer, *order] if ask.width == 512 else [*order, flashinfer]


def stored_dtype(name: str, cache_dtype: str) -> str:
    """FlashMLA's sparse kernel and FlashInfer's on SM 12.x keep fp8 as fp8_ds_mla rows."""
    if name == "FLASHMLA_SPARSE" and cache_dtype == "fp8":
        return "fp8_ds_mla"
    return "fp8_ds_mla" if name == "FLASHINFER_MLA_SPARSE_SM120" else cache_dtype


def refusal(name: str, ask: Ask) -> str | None:
    """Why a backend does not serve the layer; None where it does."""
    block = ask.block_tokens
    backend = on_generation(name, ask.generation, ask.cache_dtype)
    if block is not None and not backend.accepts(block):
        return f"takes blocks of {backend.smallest_tokens} tokens and multiples, not {block}"
    if ask.generation not in _GENERATIONS.get(name, (ask.generation,)):
        return f"is not for {ask.generation}"
    if ask.dcp > 1 and name in _WITHOUT_DCP:
        return "shares no context over DCP ranks"
    if ("MLA" in name) != ask.latent:
        return "serves MLA only" if "MLA" in name else "serves no MLA"
    if ask.latent:
        return _refuses_sparse(name, ask) if "SPARSE" in name else _refuses_dense(name, ask)
    return _refuses_heads(name, ask)


def _refuses_heads(name: str, ask: Ask) -> str | None:
    dtype, generation, width = ask.cache_dtype, ask.generation, ask.width
    old = generation in ("sm80", "sm89", "sm120")
    if name == "FLASH_ATTN":
        widest = 512 if generation in _FLASH_ATTN_4 else 256
        if width % 8 or width > widest:
            return f"head width {width} is not a multiple of 8 up to {widest}"
        if ask.sinks and old:
            return "attention sinks need SM 9.0"
        if ask.quantised and (dtype not in _FP8 or generation != "sm90"):
            return f"KV dtype {dtype} is not served"
        return None
    if name == "FLASHINFER":
        if width not in (64, 128, 256, 512):
            return f"head width {width} is not 64, 128, 256 or 512"
        if dtype.endswith("per_token_head"):
            return f"KV dtype {dtype} is not served"
        if dtype == "nvfp4" and generation != "sm100" and (width == 64 or ask.sinks):
            return "nvfp4 is misread at head width 64 and with attention sinks"
        if ask.sinks and generation in ("sm80", "sm89"):
            return "attention sinks need SM 9.0"
        return None
    if dtype in ("nvfp4",):
        return f"KV dtype {dtype} is not served"
    if width < 32:
        return f"head width {width} is below 32"
    if dtype.startswith("fp8") and generation == "sm80":
        return f"KV dtype {dtype} needs native fp8 (SM 8.9 or newer)"
    return None


def _refuses_dense(name: str, ask: Ask) -> str | None:
    if ask.sparse:
        return "serves dense MLA only"
    if ask.cache_dtype not in (*_UNQUANTISED, *_FP8):
        return f"KV dtype {ask.cache_dtype} is not served"
    if name == "TRITON_MLA":
        native = ask.generation != "sm80" or not ask.quantised
        return None if native else "fp8 needs SM 8.9 or newer"
    if name == "FLASH_ATTN_MLA" and ask.quantised:
        return f"KV dtype {ask.cache_dtype} is not served"
    if ask.width not in _MLA_WIDTHS:
        return f"latent width is not in {_MLA_WIDTHS}"
    if name == "FLASHINFER_MLA" and ask.nope_dim not in (64, 128, 192):
        return f"qk_nope_head_dim {ask.nope_dim} is not 64, 128 or 192"
    return None


def _refuses_sparse(name: str, ask: Ask) -> str | None:
    dtype = ask.cache_dtype
    if not ask.sparse:
        return "serves sparse MLA only"
    if ask.model_dtype != "bfloat16" and name != "FLASHINFER_MLA_SPARSE":
        return f"model dtype {ask.model_dtype} is not bfloat16"
    served = {
        "FLASH_ATTN_MLA_SPARSE": _UNQUANTISED,
        "FLASHINFER_MLA_SPARSE_SM90": (*_UNQUANTISED, *_FP8),
        "FLASHINFER_MLA_SPARSE_SM120": ("auto", "fp8", "fp8_ds_mla"),
        "FLASHINFER_MLA_SPARSE": (*_UNQUANTISED, *_FP8),
        "FLASHMLA_SPARSE": ("auto", "bfloat16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"),
    }[name]
    if dtype not in served:
        return f"KV dtype {dtype} is not served"
    if name == "FLASHMLA_SPARSE":
        if ask.width == 512 and (ask.rope or ask.generation != "sm90" or dtype == "fp8"):
            return "latent width 512 is served without rope on SM 9.0 only, and not as fp8"
        if ask.dcp > 1 and not ask.quantised:
            return "shares a context over DCP ranks in fp8_ds_mla only"
        if dtype == "nvfp4_ds_mla" and ask.generation != "sm100":
            return "nvfp4_ds_mla needs SM 10.x"
    if name == "FLASHINFER_MLA_SPARSE" and ask.nope_dim not in ((128, 192) if ask.rope else (256,)):
        return f"qk_nope_head_dim {ask.nope_dim} is not served"
    return None
