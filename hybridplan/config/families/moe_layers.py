"""Which layers hold routed experts, by the keys DeepSeek introduced and others share."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import MLP, MoE

WORDS = {"dense": "dense", "sparse": "sparse"}


def sparse_layers(f: Fields, count: int) -> list[bool]:
    """True where a layer has experts.

    ``mlp_layer_types``, ``moe_layer_freq`` as a list, or ``first_k_dense_replace`` with
    ``moe_layer_freq`` as a number. Any two that are given must agree.
    """
    named: list[tuple[str, list[bool]]] = []
    if f.has("mlp_layer_types"):
        words = f.words("mlp_layer_types")
        f.per_layer("mlp_layer_types", count, words)
        if any(word not in WORDS for word in words):
            raise f.fail(f"{f.at('mlp_layer_types')} must hold only dense and sparse")
        named.append(("mlp_layer_types", [word == "sparse" for word in words]))
    listed = isinstance(f.data.get("moe_layer_freq"), list)
    if listed:
        flags = f.wholes("moe_layer_freq", most=1)
        f.per_layer("moe_layer_freq", count, flags)
        named.append(("moe_layer_freq", [flag == 1 for flag in flags]))
    if f.has("first_k_dense_replace"):
        first = f.whole("mlp.first_dense", "first_k_dense_replace", least=0)
        absent = Absent(1, "moe_layer_freq absent: every layer after the first dense ones")
        step = 1 if listed else f.whole("mlp.pattern", "moe_layer_freq", absent=absent)
        rule = [i >= first and i % step == 0 for i in range(count)]
        named.append(("first_k_dense_replace", rule))
    if not named:
        raise f.missing("first_k_dense_replace", "mlp_layer_types")
    for key, flags_ in named[1:]:
        f.agree("which layers have experts", named[0][0], named[0][1], key, flags_)
    return named[0][1]


def deepseek_experts(f: Fields, *, latent_dim: int | None = None) -> MoE:
    """n_routed_experts of moe_intermediate_size, shared ones of the same width, a score bias."""
    width = f.whole("moe.intermediate", "moe_intermediate_size")
    shared = common.shared_width(f, "n_shared_experts", "num_shared_experts", each=width)
    return common.moe(
        f,
        experts=("n_routed_experts", "num_experts", "num_local_experts"),
        shared_intermediate=shared,
        router_bias=f.data.get("topk_method") not in ("greedy", "group_limited_greedy"),
        latent_dim=latent_dim,
    )


def deepseek_mlps(f: Fields, count: int, experts: MoE | None = None) -> list[MLP | None]:
    """The MLP of every layer: experts where ``sparse_layers`` says, else a dense one."""
    chosen = deepseek_experts(f) if experts is None else experts
    sparse = sparse_layers(f, count)
    if all(sparse):
        return [chosen] * count
    plain = common.dense(f)
    return [chosen if is_sparse else plain for is_sparse in sparse]


def mtp_extra(f: Fields, *, copies: bool = False) -> dict[str, int]:
    """Weights of a next-token layer beside its mixer and MLP.

    A projection of two hidden vectors to one, and the norms of both and of the shared head.
    ``copies``: the checkpoint stores the embedding and the head once more (DeepSeek-V3, GLM-4.5).
    """
    hidden = common.hidden_size(f)
    extra = {"mtp_projection": 2 * hidden * hidden + 3 * hidden}
    if copies:
        extra["mtp_embedding_copies"] = 2 * hidden * f.whole("model.vocab_size", "vocab_size")
    return extra
