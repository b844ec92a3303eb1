"""What a shell offers on Tab beyond commands and options: models, cards, engines, topics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

Offer = Callable[[str], list[str]]


def words_being_completed() -> list[str] | None:
    """The words on the line, where a shell's completion function calls; else None."""
    if not any(key.startswith("_HYBRIDPLAN_") and key.endswith("COMPLETE") for key in os.environ):
        return None
    return os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()


def _models() -> Iterable[str]:
    from hybridplan.config.catalogue import entries

    return entries()


def _gpus() -> Iterable[str]:
    from hybridplan.ledger.gpu import gpus

    return gpus()


def _engines() -> Iterable[str]:
    from hybridplan.ledger.deployment import ENGINES, VLLM_VERSIONS

    return (*ENGINES, *(f"vllm@{version}" for version in VLLM_VERSIONS))


def _topics() -> Iterable[str]:
    from hybridplan.topics import topics

    return (name for topic in topics().topics for name in (topic.name, *topic.aliases))


def _schemas() -> Iterable[str]:
    from hybridplan.cli.schema import RESULTS

    return RESULTS


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "model": _models,
    "models": _models,
    "gpu": _gpus,
    "engine": _engines,
    "topic": _topics,
    "command": _schemas,
}


def _offer(names: Callable[[], Iterable[str]]) -> Offer:
    def offer(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return offer


def teach(app: typer.Typer) -> None:
    """Let the parameters of loaded commands offer values, by the parameter's name."""
    for command in app.registered_commands:
        if command.callback is None:
            continue
        hints = get_type_hints(command.callback, include_extras=True)
        for name, names in _NAMES.items():
            for extra in _of_text(hints.get(name)):
                extra.autocompletion = _offer(names)


def _of_text(hint: Any) -> list[ParameterInfo]:
    """What Typer knows of a parameter that takes text; nothing of one that takes a number."""
    inner = get_args(hint)
    if get_origin(hint) is not Annotated:
        # Python 3.10 makes Optional[Annotated[...]] of a parameter whose default is None.
        return [found for part in inner for found in _of_text(part)]
    takes_text = inner[0] is str or str in get_args(inner[0])
    return [extra for extra in inner[1:] if takes_text and isinstance(extra, ParameterInfo)]
