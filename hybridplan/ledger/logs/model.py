"""Which model a log is about: the name it states, less what quantisers append to names."""

from __future__ import annotations

import re

from hybridplan.config.find import load
from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError

_SUFFIX = re.compile(
    r"[-_.](?:fp8(?:[-_]dynamic)?|nvfp4|mxfp4|awq(?:[-_]int4)?|gptq(?:[-_]int[48])?|int[468]"
    r"|w[48]a(?:8|16)|bf16|autoround|exl3|mtp)$",
    re.IGNORECASE,
)
SAME_SHAPES = {"qwen3.6-35b-a3b": "qwen3.5-35b-a3b"}


def find_model(stated: str | None, given: str | None) -> tuple[ModelSpec | None, str]:
    """The spec behind ``--model``, else behind the log's own name, and how it was found.

    A given name that is not known raises InputError; a stated one that is not known gives None.
    Released models of the same shapes stand for each other (``SAME_SHAPES``), and that is said.
    """
    if given is not None:
        return _load(given)
    if stated is None:
        return None, "the log names no model; give it with --model to have the figures recomputed"
    try:
        return _load(stated)
    except InputError:
        return None, (
            f"the log's model {stated!r} is not known here; give a config with --model to have the "
            "figures recomputed"
        )


def _load(name: str) -> tuple[ModelSpec, str]:
    first: InputError | None = None
    for candidate in _candidates(name):
        try:
            spec = load(candidate)
        except InputError as error:
            first = first or error
            continue
        said = "" if candidate == name else f"{name} is read as {spec.name}"
        return spec, said
    assert first is not None
    raise first


def _candidates(name: str) -> list[str]:
    names = [name]
    short = name.rstrip("/").rsplit("/", 1)[-1]
    while True:
        names.append(short)
        names.append(SAME_SHAPES.get(short.lower(), short))
        shorter = _SUFFIX.sub("", short)
        if shorter == short:
            return list(dict.fromkeys(names))
        short = shorter
