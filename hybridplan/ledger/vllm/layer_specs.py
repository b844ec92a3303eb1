"""ModelSpec x Deployment -> the layers vLLM registers, in its order, with their caches.

Sources: vLLM ``get_kv_cache_spec`` of each layer class (``model_executor/layers/attention``,
``model_executor/layers/mamba``, ``models/glm5next``) and ``v1/worker/utils.py``
(``customize_attention_spec``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from hybridplan.config.spec import (
    Attention,
    CompressedAttention,
    GatedMemoryUnit,
    LatentAttention,
    Layer,
    Mixer,
    ModelSpec,
)
from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger.caches import LayerCaches, TokenCache, layer_caches
from hybridplan.ledger.conventions import model_dtype
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import element_bytes
from hybridplan.ledger.sharding import pipeline_stages
from hybridplan.ledger.vllm import backends as table
from hybridplan.ledger.vllm import names
from hybridplan.ledger.vllm.alignment import Alignment, align
from hybridplan.ledger.vllm.backends import Backend
from hybridplan.ledger.vllm.kv_dtype import AUTO, attending, cache_dtype, layer_states, sparse
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.page import (
    AttentionCache,
    CacheMode,
    LayerCache,
    MultipleOf,
    StateCache,
)
from hybridplan.ledger.vllm.rules import VersionRules
from hybridplan.ledger.vllm.selection import Ask, select
from hybridplan.ledger.vllm.states import (
    GdnKernel,
    check_replayssm,
    checkpoint_alignment,
    gdn_kernel,
    state_cache,
)

_OWN_PASS = ("mtp", "eagle", "eagle3", "dflash", "dspark", "draft_model")


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """Everything vLLM knows of a model's caches before it groups them.

    ``layers`` by module name in registration order; ``stages`` the names each pipeline rank holds;
    ``backends`` the distinct attention backends in layer order; ``cache_dtype`` as the attention
    backend resolved it; ``draft_modules`` how many draft layers are registered.
    """

    layers: Mapping[str, LayerCache]
    stages: tuple[tuple[str, ...], ...]
    backends: tuple[Backend, ...]
    alignment: Alignment
    cache_dtype: str
    state_mode: CacheMode
    prefix_caching: bool
    draft_modules: int
    gdn_kernel: GdnKernel | None


@dataclass(frozen=True, slots=True)
class _Site:
    """A cache before the block is known: pages of one token (or state), and who reads it."""

    name: str
    cache: LayerCache
    backend: Backend | None = None


def model_layers(
    spec: ModelSpec,
    deployment: Deployment,
    options: VllmOptions,
    rules: VersionRules,
    max_model_len: int,
) -> ModelLayers:
    """Build every layer's cache on one rank.

    Each pipeline rank aligns its own blocks (vLLM does so in the worker): a rank without attention
    leaves its states unpadded. Raises InputError or RefusalError where vLLM would refuse the model.
    """
    drafts = _draft_layers(spec, deployment, options)
    states = any(layer_states(layer) for layer in spec.layers)
    attends = any(True for _ in attending(spec.layers))
    prefix_caching = options.prefix_caching
    if prefix_caching is None:
        prefix_caching = attends
    mode: CacheMode = "align" if states and prefix_caching else "none"
    if options.replayssm_tokens:
        check_replayssm(options, deployment.drafts, mode)
    builder = _Builder(spec, deployment, options, rules, mode)
    sites = [
        [site for layer in stage for site in builder.sites(layer)]
        for stage in pipeline_stages(spec.layers, deployment.pp, "vllm")
    ]
    part: names.Part = "mtp" if options.draft_layers is None else "drafter"
    sites[-1] += [site for layer in drafts for site in builder.sites(layer, part)]
    layers: dict[str, LayerCache] = {}
    alignments = []
    for stage in sites:
        alignment = align(
            distinct_backends(stage),
            token_bytes=builder.model_token_bytes(),
            state_bytes=builder.model_state_bytes(),
            mla=any(isinstance(m, LatentAttention) for m in attending(spec.layers)),
            mode=mode,
            rules=rules,
            checkpoint_alignment_tokens=builder.checkpoint_lcm(),
            start_tokens=options.block_tokens,
            max_model_len=max_model_len,
        )
        layers |= {site.name: _with_block(site, alignment, mode) for site in stage}
        alignments.append(alignment)
    every = [site for stage in sites for site in stage]
    if len(layers) != len(every):
        raise InputError(f"{spec.name}: two layers share one module name")
    return ModelLayers(
        layers,
        tuple(tuple(site.name for site in stage) for stage in sites),
        distinct_backends(every),
        max(alignments, key=lambda found: found.block_tokens),
        builder.cache_dtype,
        mode,
        prefix_caching,
        len(drafts),
        gdn_kernel(spec, options),
    )


def distinct_backends(sites: Sequence[_Site]) -> tuple[Backend, ...]:
    """Each attention backend once, in layer order."""
    return tuple(dict.fromkeys(site.backend for site in sites if site.backend is not None))


def _draft_layers(
    spec: ModelSpec, deployment: Deployment, options: VllmOptions
) -> tuple[Layer, ...]:
    if not deployment.drafts or options.draft_method not in _OWN_PASS:
        return ()
    given = options.draft_layers
    if given is None:
        if options.draft_method != "mtp":
            raise InputError(
                f"the layers of a {options.draft_method} drafter are not in the checkpoint of "
                f"{spec.name}; give them"
            )
        if not spec.draft_layers:
            silent = _unstated_mtp(spec)
            if silent is not None:
                return (silent,)
            raise InputError(
                f"{spec.name} carries no MTP layers but {deployment.drafts} drafts were asked for; "
                "set drafts to 0 or give the drafter's layers"
            )
        return spec.draft_layers
    first = len(spec.layers)
    return tuple(replace(layer, index=first + i) for i, layer in enumerate(given))


def _unstated_mtp(spec: ModelSpec) -> Layer | None:
    """The one MTP layer vLLM builds for Qwen3-Next, whose config.json does not count it."""
    if spec.model_type != "qwen3_next":
        return None
    *_, last = attending(spec.layers)
    return Layer(len(spec.layers), (last,), None)


def _with_block(site: _Site, alignment: Alignment, mode: CacheMode) -> LayerCache:
    cache = site.cache
    if isinstance(cache, StateCache):
        assert alignment.state_block_tokens is not None
        grid = cache.checkpoint_alignment_tokens
        return replace(
            cache,
            block_tokens=alignment.state_block_tokens,
            padded_page_bytes=alignment.state_page_bytes,
            mode=mode,
            checkpoint_alignment_tokens=alignment.state_block_tokens if grid == 0 else grid,
        )
    assert site.backend is not None
    if cache.kind == "ring":
        return cache
    block = alignment.block_tokens
    if cache.kind == "sliding":
        block = site.backend.largest_within(block)
    return site.backend.customize(cache.with_block(block))


@dataclass(frozen=True)
class _Builder:
    spec: ModelSpec
    deployment: Deployment
    options: VllmOptions
    rules: VersionRules
    mode: CacheMode

    @property
    def asked_dtype(self) -> str:
        return cache_dtype(self.spec, self.deployment, self.options.generation, self.rules)

    @property
    def cache_dtype(self) -> str:
        """The KV dtype after the first latent's backend narrowed it."""
        for mixer in attending(self.spec.layers):
            if isinstance(mixer, LatentAttention):
                return select(self._ask(mixer))[1]
        return self.asked_dtype

    def sites(self, layer: Layer, part: names.Part = "target") -> list[_Site]:
        """The caches of one decoder layer, attention before states, an indexer before its layer."""
        held = layer_caches(layer, self.spec, self._stored_deployment())
        found: list[_Site] = []
        for mixer in layer.mixers:
            if isinstance(mixer, CompressedAttention):
                raise RefusalError(
                    f"{self.spec.name}: the pool plan of compressed attention (DeepSeek-V4) is not "
                    "modelled; no figure is given"
                )
            if isinstance(mixer, Attention | LatentAttention):
                found += self._attention(layer, mixer, held, part)
        for mixer in layer.mixers:
            if not isinstance(mixer, Attention | LatentAttention | GatedMemoryUnit):
                found.append(self._state(layer, mixer, held, part))
        return found

    def model_token_bytes(self) -> int:
        """Attention page of one token that the hybrid alignment compares states with, in bytes."""
        for layer in self.spec.layers:
            held = layer_caches(layer, self.spec, self._stored_deployment())
            for cache in held.tokens:
                if cache.name == "kv":
                    return cache.bytes_per_entry
                if cache.name == "mla":
                    element = 1 if self._quantised else element_bytes(cache.dtype)
                    return cache.key_dim * element
        return 0

    def model_state_bytes(self) -> int:
        """The state that the hybrid alignment sees: the model's, not each layer's."""
        largest = 0
        for layer in self.spec.layers:
            for mixer in layer.mixers:
                if isinstance(mixer, Attention | LatentAttention | GatedMemoryUnit):
                    continue
                deployment = self.deployment
                if mixer.kind == "short_conv":
                    deployment = replace(deployment, drafts=0)
                cache = state_cache(
                    mixer,
                    layer,
                    self.spec,
                    deployment,
                    self.options,
                    self.rules,
                    model_level=True,
                )
                largest = max(largest, cache.content_bytes)
        return largest

    def checkpoint_lcm(self) -> int | None:
        """Common checkpoint alignment that the layers declare, None if any declares none."""
        return checkpoint_alignment(self.spec, self.options, self.rules)

    @property
    def _quantised(self) -> bool:
        return self.asked_dtype not in (AUTO, "bfloat16", "float16") or self.cache_dtype.endswith(
            "ds_mla"
        )

    def _stored_deployment(self) -> Deployment:
        asked = self.cache_dtype
        return replace(self.deployment, kv_dtype=None if asked == AUTO else asked)

    def _ask(self, mixer: Attention | LatentAttention, draft: bool = False) -> Ask:
        latent = isinstance(mixer, LatentAttention)
        spec, options = self.spec, self.options
        return Ask(
            options.generation,
            self.asked_dtype,
            model_dtype(spec, self.deployment),
            mixer.kv_lora_rank + mixer.rope_dim
            if isinstance(mixer, LatentAttention)
            else mixer.key_dim,
            latent=latent,
            sparse=latent and sparse(mixer),
            rope=isinstance(mixer, LatentAttention) and mixer.rope_dim > 0,
            sinks=isinstance(mixer, Attention) and mixer.sinks,
            non_causal=draft and options.draft_method in ("dflash", "dspark"),
            heads=-(-mixer.heads // self.deployment.tp),
            nope_dim=mixer.nope_dim if isinstance(mixer, LatentAttention) else 0,
            block_tokens=options.block_tokens,
            dcp=self.deployment.dcp,
        )

    def _backend(self, mixer: Attention | LatentAttention, part: names.Part) -> Backend:
        wanted = self.options.attention_backend
        if wanted is not None and ("MLA" in wanted) != isinstance(mixer, LatentAttention):
            wanted = None
        backend, _ = select(self._ask(mixer, part != "target"), wanted)
        smallest = self.options.kernel_block_tokens
        if smallest is not None:
            return replace(backend, kernel_blocks=(MultipleOf(smallest),))
        if backend.name == "FLASHINFER":
            least = self.rules.flashinfer_block_tokens
            blocks = tuple(b for b in backend.kernel_blocks if isinstance(b, int) and b >= least)
            return replace(backend, kernel_blocks=blocks)
        return backend

    def _attention(
        self, layer: Layer, mixer: Attention | LatentAttention, held: LayerCaches, part: names.Part
    ) -> list[_Site]:
        found = []
        for cache in held.tokens:
            if cache.name == "index":
                found += self._indexer(layer, mixer, cache, part)
        for cache in held.tokens:
            if cache.name in ("kv", "mla"):
                name = names.cache_name(self.spec, layer, mixer, part)
                backend = self._backend(mixer, part)
                found.append(_Site(name, self._page(cache, mixer, part != "target"), backend))
        return found

    def _page(
        self, cache: TokenCache, mixer: Attention | LatentAttention, draft: bool
    ) -> AttentionCache:
        dtype = "uint8" if self._quantised else cache.dtype
        latent = isinstance(mixer, LatentAttention)
        packed = self.cache_dtype.endswith(("per_token_head", "ds_mla"))
        window = cache.window
        page = AttentionCache(
            kind="mla" if latent else "full",
            block_tokens=1,
            heads=cache.heads,
            key_dim=cache.key_dim,
            value_dim=cache.value_dim,
            dtype=dtype,
            entry_bytes=cache.bytes_per_entry // cache.heads if packed else None,
            cache_dtype=self.cache_dtype if latent else None,
            index_leader=latent and mixer.indexer is not None and mixer.indexer.owned,
            draft=draft,
        )
        if self.cache_dtype == "nvfp4":
            slots = 2 * cache.heads
            page = replace(page, head_slots=slots, entry_bytes=cache.bytes_per_entry // slots)
        if window is None:
            return page
        if window.kind == "chunked":
            return replace(page, kind="chunked", chunk_tokens=window.tokens)
        return replace(page, kind="sliding", window_tokens=window.tokens)

    def _indexer(
        self,
        layer: Layer,
        mixer: Attention | LatentAttention,
        cache: TokenCache,
        part: names.Part,
    ) -> list[_Site]:
        indexer = mixer.indexer
        assert indexer is not None
        name = names.indexer_name(self.spec, layer, "k_cache", part)
        keys = AttentionCache(
            kind="mla",
            block_tokens=indexer.tokens_per_entry,
            heads=cache.heads,
            key_dim=cache.bytes_per_entry // cache.heads,
            dtype="uint8",
            tokens_per_entry=Fraction(cache.tokens_per_entry),
            role="indexer",
            draft=part != "target",
        )
        backend = table.indexer_backend(cache.tokens_per_entry, self.options.generation)
        found = [_Site(name, keys, backend)]
        if indexer.tail_ring:
            ring = AttentionCache(
                kind="ring",
                block_tokens=_ring_tokens(cache.tokens_per_entry, self.deployment.drafts),
                heads=2,
                key_dim=indexer.head_dim,
                dtype="bfloat16",
                dcp_sharded=False,
                draft=part != "target",
            )
            tail = names.indexer_name(self.spec, layer, "tail_cache", part)
            found.append(_Site(tail, ring, table.BACKENDS["KPOOL_TAIL"]))
        return found

    def _state(self, layer: Layer, mixer: Mixer, held: LayerCaches, part: names.Part) -> _Site:
        cache = state_cache(
            mixer, layer, self.spec, self.deployment, self.options, self.rules, mode=self.mode
        )
        name = names.cache_name(self.spec, layer, mixer, part)
        return _Site(name, replace(cache, draft=part != "target"))


def _ring_tokens(pool_tokens: int, drafts: int) -> int:
    """Smallest power of two of pools that hold an open pool and the drafts."""
    pools = 1
    while pools * pool_tokens < pool_tokens + drafts:
        pools *= 2
    return pools * pool_tokens
