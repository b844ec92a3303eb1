"""ModelSpec x Deployment -> the layers vLLM registers, in its order, with their caches.

Sources: vLLM ``get_kv_cache_spec`` of each layer class (``model_executor/layers/attention``,
``model_executor/layers/mamba``, ``models/glm5next``) and ``v1/worker/utils.py``
(``customize_attention_spec``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hybridplan.config.spec import LatentAttention, Layer, ModelSpec
from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.sharding import pipeline_stages
from hybridplan.ledger.vllm import names
from hybridplan.ledger.vllm.alignment import Alignment, align
from hybridplan.ledger.vllm.backends import Backend
from hybridplan.ledger.vllm.kv_dtype import attending, layer_states
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.page import CacheMode, LayerCache, StateCache
from hybridplan.ledger.vllm.rules import VersionRules
from hybridplan.ledger.vllm.sites import Site, SiteBuilder
from hybridplan.ledger.vllm.states import GdnKernel, check_replayssm, gdn_kernel

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
    if spec.architecture in rules.unserved:
        raise RefusalError(
            f"vLLM {rules.version} has no model class for {spec.architecture} ({spec.name}), so it "
            "would not load; plan it for another engine"
        )
    drafts = _draft_layers(spec, deployment, options)
    states = any(layer_states(layer) for layer in spec.layers)
    attends = any(True for _ in attending(spec.layers))
    prefix_caching = options.prefix_caching
    if prefix_caching is None:
        prefix_caching = attends
    mode = _state_mode(states and prefix_caching, options, rules)
    if options.replayssm_tokens:
        check_replayssm(options, deployment.drafts, mode)
    builder = SiteBuilder(spec, deployment, options, rules, mode)
    sites = [
        [site for layer in stage for site in builder.sites(layer)]
        for stage in pipeline_stages(spec.layers, deployment.pp, "vllm")
    ]
    if names.registers_attention_first(spec):
        for stage in sites:
            stage.sort(key=lambda site: site.backend is None)
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
            chunk_tokens=options.state_chunk_tokens,
            max_model_len=max_model_len,
        )
        alike = {_likeness(site): site for site in stage}
        placed = {key: _with_block(site, alignment, mode) for key, site in alike.items()}
        layers |= {site.name: placed[_likeness(site)] for site in stage}
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


def _state_mode(cached: bool, options: VllmOptions, rules: VersionRules) -> CacheMode:
    if not options.state_chunk_tokens:
        return "align" if cached else "none"
    if not rules.keeps_every_state:
        raise RefusalError(
            f"vLLM {rules.version} has no mode that keeps a state at every block "
            f"(state_chunk_tokens is {options.state_chunk_tokens}); set it to 0"
        )
    return "all" if cached else "none"


def distinct_backends(sites: Sequence[Site]) -> tuple[Backend, ...]:
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
                f"{spec.name}; give them with --draft-layers"
            )
        if not spec.draft_layers:
            silent = _unstated_mtp(spec)
            if silent is not None:
                return (silent,)
            raise InputError(
                f"{spec.name} carries no MTP layers but {deployment.drafts} drafts were asked for; "
                "set drafts to 0 or give a drafter's layers with --draft-method and --draft-layers"
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


def _likeness(site: Site) -> tuple[LayerCache, bool, Backend | None]:
    """Sites of one likeness become equal caches (equality itself overlooks who drafts)."""
    return site.cache, site.cache.draft, site.backend


def _with_block(site: Site, alignment: Alignment, mode: CacheMode) -> LayerCache:
    cache = site.cache
    if isinstance(cache, StateCache):
        assert alignment.state_block_tokens is not None
        grid = cache.checkpoint_alignment_tokens
        padded = alignment.state_page_bytes
        if padded is not None and padded < cache.content_bytes:
            raise RefusalError(
                f"the block is aligned for a state of {alignment.state_bytes:,} bytes in pages of "
                f"{padded:,}, but the layers keep {cache.content_bytes:,} bytes whatever "
                "--mamba-ssm-cache-dtype says, and vLLM stops on that; drop --state-dtype"
            )
        return replace(
            cache,
            block_tokens=alignment.state_block_tokens,
            padded_page_bytes=padded,
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
