"""The explorer's controls as HTML: every slider with a number box, a label and a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hybridplan.report.page.assets import attributes, escape
from hybridplan.report.page.settings import Settings

_HEADS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 256)
_WIDTHS = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576)
_CHANNELS = (256, 512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 8192, 16384, 32768)
_TP = (1, 2, 4, 8, 16)
_BLOCKS = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_KV = {
    "fp8": "fp8",
    "int8_per_token_head": "int8, scales per token and head",
    "int4_per_token_head": "int4, scales per token and head",
}
_STATE_DTYPES = {"float32": "float32", "bfloat16": "bfloat16"}
_MOST = 1 << 30
_MOST_LAYERS = 200
# A model whose state a reader gets who picks another kind.
EXAMPLES = {
    "gdn": "qwen3.5-9b",
    "lightning": "ling-2.6-flash",
    "mamba2": "nemotron-3-nano-30b-a3b-bf16",
    "mamba1": "jamba-1.5-mini",
    "short_conv": "lfm2-1.2b",
}
STATE_FIELDS = (
    "state_heads",
    "state_key_heads",
    "state_key_dim",
    "state_value_dim",
    "conv_kernel",
    "conv_channels",
    "conv_over_groups",
    "flashinfer_states",
    "bounded_gate",
)
_STATE_NAMES = {
    "gdn": "Gated DeltaNet",
    "kda": "Kimi delta attention",
    "lightning": "Lightning attention",
    "mamba1": "Mamba",
    "mamba2": "Mamba-2",
    "short_conv": "short convolution",
    "state": "the model's own form",
}


@dataclass(frozen=True, slots=True)
class Knob:
    """One number. ``steps`` are where its slider stops; without them every whole number."""

    name: str
    label: str
    steps: tuple[int, ...] = ()
    least: int = 1
    most: int = _MOST
    hint: str = ""


def controls(start: Settings) -> str:
    """Three foldable parts of the form."""
    return "\n".join(
        (
            _part("Model", _model(start)),
            _part("State", _state(start)),
            _part("Deployment", _deployment(start)),
        )
    )


def _part(title: str, fields: Iterable[str]) -> str:
    inside = "\n".join(fields)
    return (
        f'<details open><summary>{escape(title)}</summary>\n<div class="fields">\n{inside}\n</div>'
        "</details>"
    )


def _model(s: Settings) -> list[str]:
    layers = s.full_layers + s.window_layers + s.state_layers - s.parallel
    fields = [
        _slider(Knob("layers", "Layers that mix tokens", most=max(_MOST_LAYERS, layers)), layers),
        _slider(
            Knob("full_layers", "Full attention layers", least=0, most=layers, hint=" "),
            s.full_layers,
        ),
    ]
    latent = s.attention == "mla"
    if not latent:
        window = Knob("window_layers", "Windowed attention layers", least=0, most=layers)
        fields.append(_slider(window, s.window_layers))
    if s.parallel:
        both = Knob("parallel", "Layers with attention and a state", least=0, most=layers)
        fields.append(_slider(both, s.parallel))
    fields.append(_slider(Knob("query_heads", "Query heads", _HEADS), s.query_heads))
    if latent:
        fields.append(_slider(Knob("key_dim", "Latent width (MLA)", _WIDTHS), s.key_dim))
        return fields
    fields += [
        _slider(Knob("kv_heads", "KV heads", _HEADS), s.kv_heads),
        _slider(Knob("key_dim", "Key width of a head", _WIDTHS), s.key_dim),
        _slider(Knob("value_dim", "Value width of a head", _WIDTHS), s.value_dim),
    ]
    if s.window_layers:
        windows = tuple(1 << n for n in range(6, 18))
        fields += [
            _slider(Knob("window_tokens", "Window, tokens", windows), s.window_tokens),
            _slider(Knob("window_kv_heads", "KV heads, windowed", _HEADS), s.window_kv_heads),
            _slider(Knob("window_key_dim", "Key width, windowed", _WIDTHS), s.window_key_dim),
            _slider(Knob("window_value_dim", "Value width, windowed", _WIDTHS), s.window_value_dim),
        ]
    else:
        windows = tuple(1 << n for n in range(6, 18))
        fields.append(_slider(Knob("window_tokens", "Window, tokens", windows), s.window_tokens))
    return fields


def _state(s: Settings) -> list[str]:
    kinds = [s.state_kind, *(kind for kind in EXAMPLES if kind != s.state_kind)]
    names = {kind: _STATE_NAMES[kind] for kind in kinds}
    fields = [
        _select("state_kind", "Kind", names, s.state_kind),
        _slider(
            Knob(
                "state_heads",
                "Heads or channels",
                (*_HEADS, *_CHANNELS),
                hint="Value heads; channels for Mamba and short convolutions",
            ),
            s.state_heads,
        ),
        _slider(
            Knob("state_key_heads", "Key heads or groups", _HEADS, hint="Gated DeltaNet, Mamba-2"),
            s.state_key_heads,
        ),
        _slider(
            Knob("state_key_dim", "Key or state width", _WIDTHS, least=min(1, s.state_key_dim)),
            s.state_key_dim,
        ),
        _slider(
            Knob(
                "state_value_dim", "Value or head width", _WIDTHS, least=min(1, s.state_value_dim)
            ),
            s.state_value_dim,
        ),
        _slider(
            Knob(
                "conv_kernel",
                "Convolution kernel",
                (2, 3, 4, 5, 6, 8),
                least=min(2, s.conv_kernel),
            ),
            s.conv_kernel,
        ),
    ]
    if s.state_kind != "kda":
        fields.append(_select("state_dtype", "State dtype", _with(s.state_dtype), s.state_dtype))
    fields.append(_select("conv_dtype", "Convolution dtype", _with(s.conv_dtype), s.conv_dtype))
    return fields


def _with(own: str) -> dict[str, str]:
    return {**_STATE_DTYPES, own: own}


def _deployment(s: Settings) -> list[str]:
    kv = {s.model_dtype: s.model_dtype, **_KV}
    if s.attention == "mla":
        kv = {s.model_dtype: s.model_dtype, "fp8": "fp8"}
    contexts = tuple(1 << n for n in range(8, 21))
    memory = (8, 16, 24, 40, 64, 80, 96, 120, 141, 160, 192, 256, 320, 512, 640)
    return [
        _slider(Knob("tp", "Tensor parallel ranks", _TP, most=1024), s.tp),
        _slider(Knob("drafts", "Draft tokens", tuple(range(9)), least=0, most=64), s.drafts),
        _select("kv_dtype", "KV dtype", kv, s.kv_dtype),
        _slider(
            Knob("context_tokens", "Context, tokens", contexts, most=1 << 24), s.context_tokens
        ),
        _slider(
            Knob(
                "block_tokens",
                "Block to start from",
                _BLOCKS,
                least=0,
                most=1 << 20,
                hint="--block-size; 0 leaves it to the engine",
            ),
            s.block_tokens,
        ),
        _slider(
            Knob("memory_gib", "Cache memory of a rank, GiB", memory, most=1 << 16), s.memory_gib
        ),
        _slider(
            Knob("batched_tokens", "Tokens of a step", (1024, 2048, 4096, 8192, 16384, 32768)),
            s.batched_tokens,
        ),
        _check("prefix_caching", "Prefix caching", s.prefix_caching),
    ]


def _slider(knob: Knob, value: int) -> str:
    name = knob.name
    steps: Sequence[int] = sorted({*knob.steps, value}) if knob.steps else ()
    hint = f"hint-{name}" if knob.hint else None
    number = attributes(
        type="number",
        id=name,
        data_knob=name,
        min=knob.least,
        max=knob.most,
        step=1,
        value=value,
        inputmode="numeric",
        aria_describedby=hint,
    )
    scale = attributes(
        type="range",
        data_knob=name,
        min=0 if steps else knob.least,
        max=len(steps) - 1 if steps else knob.most,
        step=1,
        value=steps.index(value) if steps else value,
        data_steps=",".join(map(str, steps)) if steps else None,
        aria_label=f"{knob.label}, slider",
        aria_valuetext=f"{value:,}",
    )
    said = f'<p class="hint" id="{hint}">{escape(knob.hint.strip())}</p>' if hint else ""
    return (
        f'<div class="field"><div class="row"><label for="{name}">{escape(knob.label)}</label>'
        f"<input{number}></div><input{scale}>{said}</div>"
    )


def _select(name: str, label: str, options: dict[str, str], value: str) -> str:
    inside = "".join(
        f'<option value="{escape(key)}"{" selected" if key == value else ""}>{escape(text)}'
        "</option>"
        for key, text in options.items()
    )
    return (
        f'<div class="field"><div class="row"><label for="{name}">{escape(label)}</label>'
        f'<select id="{name}" data-knob="{name}">{inside}</select></div></div>'
    )


def _check(name: str, label: str, value: bool) -> str:
    checked = " checked" if value else ""
    return (
        f'<div class="field"><div class="row"><label for="{name}">{escape(label)}</label>'
        f'<input type="checkbox" id="{name}" data-knob="{name}"{checked}></div></div>'
    )
