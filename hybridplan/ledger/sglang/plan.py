"""SGLang's pools for a model, a deployment and the memory left after weights and reserve.

Rules: SGLang 0.5.23 (specification sections 1 to 3 and 9).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError
from hybridplan.ledger import conventions
from hybridplan.ledger.caches import LayerCaches, draft_caches, model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import element_bytes
from hybridplan.ledger.sglang.options import SglangOptions
from hybridplan.ledger.sglang.replay import decode_ring_bytes, verify_ring_bytes
from hybridplan.ledger.sglang.split import Split, SplitInput, split
from hybridplan.ledger.sglang.strategy import (
    Strategy,
    resolve_strategy,
    slots_per_request,
    state_chunk_tokens,
    tracking_slots,
)


@dataclass(frozen=True, slots=True)
class HostTier:
    """HiCache's host side: slots and tokens of both pools, and the bytes they take together.

    ``coverage`` is host state slots x tokens between states over host KV tokens: below 1, KV is
    kept that no state can start.
    """

    slots: int
    kv_tokens: int
    bytes: int
    coverage: float


@dataclass(frozen=True, slots=True)
class SglangPlan:
    """What SGLang will allocate on each rank, and what it will let run.

    ``state_bytes`` and ``conv_bytes`` are of one slot. ``intermediate_allocated_bytes`` is what the
    verify buffers really take, against ``split.intermediate_bytes`` charged. ``outside_bytes`` are
    allocations the split has no term for (they come out of the static reserve). ``balanced_ratio``
    is the ratio at which slots and KV tokens bind together at the full context. ``pd_decode_slots``
    is 0 unless a PD decode server was asked for. ``boot_lines`` are the lines SGLang would log.
    """

    deployment: Deployment
    options: SglangOptions
    rest_bytes: int
    strategy: Strategy
    slots_per_request: int
    tracking_slots: int
    state_bytes: int
    conv_bytes: int
    kv_bytes_per_token: int
    context_tokens: int
    split: Split
    intermediate_allocated_bytes: int
    outside_bytes: dict[str, int]
    checkpoint_grid_tokens: int
    track_grid_tokens: int
    balanced_ratio: Fraction
    host: HostTier | None
    pd_decode_slots: int
    boot_lines: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def slot_bytes(self) -> int:
        """One state slot over all linear layers of this rank."""
        return self.state_bytes + self.conv_bytes


def slot_bytes(layers: tuple[LayerCaches, ...]) -> tuple[int, int]:
    """Bytes of one slot on this rank: recurrent states, and convolution windows with their kin."""
    state = conv = 0
    for layer in layers:
        for part in layer.states:
            if part.name == "state":
                state += part.bytes
            elif part.checkpointed:
                conv += part.bytes
    return state, conv


def kv_bytes_per_token(layers: tuple[LayerCaches, ...], name: str) -> int:
    """KV (and index) bytes of one token on this rank.

    Raises InputError for windowed layers, whose separate pool this plan does not divide.
    """
    total = Fraction(0)
    for layer in layers:
        for cache in layer.tokens:
            if cache.window is not None:
                raise InputError(
                    f"{name} has windowed attention (layer {layer.index}, "
                    f"{cache.window.tokens:,} tokens), for which SGLang makes a third pool that "
                    "this plan does not divide; use --engine vllm"
                )
            total += Fraction(cache.bytes_per_entry, cache.tokens_per_entry * cache.context_ranks)
    return int(total)


def chunk_tokens(spec: ModelSpec, options: SglangOptions) -> int:
    """The state chunk asked for, or the model's own."""
    if options.chunk_tokens is not None:
        return options.chunk_tokens
    return state_chunk_tokens(spec.model_type, spec.state_chunk_tokens)


def _grids(spec: ModelSpec, options: SglangOptions) -> tuple[int, int]:
    chunk, page = chunk_tokens(spec, options), options.page_tokens
    wide, narrow = max(chunk, page), min(chunk, page)
    if wide % narrow:
        raise InputError(f"page size {page} and state chunk {chunk} must divide one another")
    checkpoint = lcm(wide, page)
    return checkpoint, lcm(checkpoint, options.track_interval_tokens)


def _intermediates(
    spec: ModelSpec, layers: tuple[LayerCaches, ...], plan_rows: int, verify_tokens: int
) -> int:
    """Verify buffers as allocated: D states, and one strip of D + K - 2 conv columns."""
    total = 0
    for layer in layers:
        for part in layer.states:
            if part.name == "state":
                total += part.bytes * verify_tokens
            elif part.name == "conv":
                columns, channels = part.shape
                strip = verify_tokens + columns - 1
                total += strip * channels * element_bytes(part.dtype)
    return total * (plan_rows + 1)


def _host(
    options: SglangOptions, got: Split, slot_bytes: int, kv_bytes: int, track: int
) -> HostTier | None:
    if options.host_bytes is not None:
        device = (got.slots + 1) * slot_bytes + got.kv_tokens * kv_bytes
        share = Fraction(options.host_bytes, device)
    elif options.host_ratio is not None:
        share = options.host_ratio
    else:
        return None
    slots = int(got.slots * share) + 1
    tokens = int(got.kv_tokens * share)
    total = slots * slot_bytes + tokens * kv_bytes
    return HostTier(slots, tokens, total, slots * track / tokens if tokens else 0.0)


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1024**3:.2f}"


def _key_bytes_per_token(layers: tuple[LayerCaches, ...]) -> int | None:
    """Bytes of a token's keys alone; None with latents, whose pool has no keys and values apart."""
    keys = 0
    for cache in (cache for layer in layers for cache in layer.tokens):
        if cache.name != "kv":
            return None
        width = cache.key_dim + cache.value_dim
        keys += cache.bytes_per_entry * cache.key_dim // (width * cache.context_ranks)
    return keys


def _boot_lines(
    plan: SglangPlan, kv_dtype: str, layers: tuple[LayerCaches, ...]
) -> tuple[str, ...]:
    """The lines in SGLang's wording; "..." stands for figures that no plan decides."""
    got = plan.split
    rows = got.slots + 1
    conv, state = rows * plan.conv_bytes, rows * plan.state_bytes
    lines = [
        f"Mamba Cache is allocated. max_mamba_cache_size: {got.slots}, "
        f"conv_state size: {_gigabytes(conv)}GB, ssm_state size: {_gigabytes(state)}GB"
    ]
    kv = got.kv_tokens * plan.kv_bytes_per_token
    keys = _key_bytes_per_token(layers)
    if keys is None:
        sizes = f"KV size: {_gigabytes(kv)} GB"
    else:
        k = got.kv_tokens * keys
        sizes = f"K size: {_gigabytes(k)} GB, V size: {_gigabytes(kv - k)} GB"
    lines.append(
        f"KV Cache is allocated. dtype: torch.{kv_dtype}, #tokens: {got.kv_tokens}, {sizes}"
    )
    lines.append(
        f"max_total_num_tokens={got.kv_tokens}, ..., "
        f"max_running_requests={got.max_running_requests}, context_len={plan.context_tokens}, ..."
    )
    return tuple(lines)


def _warnings(plan: SglangPlan) -> tuple[str, ...]:
    got, options = plan.split, plan.options
    said = []
    asked = options.max_running_requests
    if asked is not None and got.max_running_requests < asked:
        said.append(
            f"{asked} running requests were asked for and {got.binds} allow "
            f"{got.max_running_requests}: {got.slots} slots at {plan.slots_per_request} a request"
        )
    if plan.strategy == "no_buffer" and options.radix_cache:
        said.append(
            "no_buffer keeps no state at the end of a shared prompt, so requests that share only a "
            "system prompt never hit; --mamba-radix-cache-strategy extra_buffer would"
        )
    if plan.strategy != "no_buffer" and options.radix_cache:
        said.append(
            f"prompts that share fewer than {plan.checkpoint_grid_tokens} tokens never hit, and "
            f"decode keeps a state only every {plan.track_grid_tokens} tokens"
        )
    for what, size in plan.outside_bytes.items():
        said.append(
            f"{what} take {size:,} bytes the split has no term for; they come out of the reserve "
            "that --mem-fraction-static leaves"
        )
    return tuple(said)


def plan_sglang(
    spec: ModelSpec, deployment: Deployment, options: SglangOptions, rest_bytes: int
) -> SglangPlan:
    """Divide ``rest_bytes`` (free after weights and the static reserve, per rank) as SGLang does.

    ``deployment.drafts`` n gives a verify window of n + 1 tokens. Draft layers of the checkpoint
    hold KV when n > 0. Raises InputError for contradictory choices and RefusalError when not one
    request fits.
    """
    if deployment.engine != "sglang":
        raise InputError(f"plan_sglang was given a deployment of {deployment.engine}")
    if deployment.pp > 1:
        raise InputError(
            f"pp is {deployment.pp} and SGLang's split over pipeline stages is not modelled; plan "
            "for --pp 1, or use --engine vllm"
        )
    layers = model_caches(spec, deployment)
    state_bytes, conv_bytes = slot_bytes(layers)
    slot = state_bytes + conv_bytes
    if not slot:
        raise InputError(
            f"{spec.name} has no recurrent state, so SGLang makes one pool and there is nothing to "
            "split; see hybridplan ledger --engine sglang"
        )
    drafting = draft_caches(spec, deployment) if deployment.drafts else ()
    per_token = kv_bytes_per_token(layers + drafting, spec.name)
    if not per_token:
        raise InputError(
            f"{spec.name} has no attention, so SGLang has no KV to divide memory with; see "
            "hybridplan ledger --engine sglang"
        )
    context = options.context_tokens or spec.max_tokens
    if not context:
        raise InputError(f"{spec.name} states no longest length; give --max-model-len")
    architecture = spec.architecture
    strategy = (
        "no_buffer"
        if options.replay == "decode"
        else resolve_strategy(
            options.strategy, architecture, overlap=options.overlap, page_tokens=options.page_tokens
        )
    )
    overlap = options.overlap and strategy != "no_buffer"
    reserved = slots_per_request(
        strategy,
        overlap=overlap,
        radix_cache=options.radix_cache,
        skip_decode_lock=options.skip_decode_lock,
    )
    ring = extra = 0
    if options.replay == "verify":
        ring, extra = verify_ring_bytes(spec, deployment, options.replay_rows)
    verify_tokens = deployment.drafts + 1
    snapshots = options.replay != "verify" and not options.prefill_server
    got = split(
        SplitInput(
            rest_bytes=rest_bytes,
            slot_bytes=slot,
            kv_bytes_per_token=per_token,
            ratio=options.ratio,
            slots_per_request=reserved,
            verify_tokens=verify_tokens,
            snapshots=snapshots,
            slot_extra_bytes=extra,
            ring_bytes=ring,
            max_running_requests=options.max_running_requests,
            slots=options.slots,
            radix_cache=options.radix_cache,
            context_tokens=context,
        )
    )
    outside = {}
    if options.replay == "decode":
        rows = decode_ring_bytes(spec, deployment, options.replay_rows)
        outside["decode rings of ReplaySSM"] = rows * (got.slots + 1)
    allocated = 0
    if got.intermediate_bytes:
        allocated = _intermediates(spec, layers, got.max_running_requests, verify_tokens)
    checkpoint, track = _grids(spec, options)
    equivalent = Fraction(slot, per_token)
    held = reserved + (verify_tokens if snapshots and verify_tokens > 1 else 0)
    tracking = tracking_slots(strategy, overlap=overlap)
    requests = got.max_running_requests + options.preallocated_requests
    plan = SglangPlan(
        deployment=deployment,
        options=options,
        rest_bytes=rest_bytes,
        strategy=strategy,
        slots_per_request=reserved,
        tracking_slots=tracking,
        state_bytes=state_bytes,
        conv_bytes=conv_bytes,
        kv_bytes_per_token=per_token,
        context_tokens=context,
        split=got,
        intermediate_allocated_bytes=allocated,
        outside_bytes=outside,
        checkpoint_grid_tokens=checkpoint,
        track_grid_tokens=track,
        balanced_ratio=held * equivalent / context,
        host=_host(options, got, slot, per_token, track),
        pd_decode_slots=requests * (1 + tracking) if options.preallocated_requests else 0,
        boot_lines=(),
        warnings=(),
    )
    lines = _boot_lines(plan, conventions.kv_dtype(spec, deployment), layers + drafting)
    return replace(plan, boot_lines=lines, warnings=_warnings(plan))
