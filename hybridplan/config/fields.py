"""Typed reads of one JSON object, with a record of where each value came from.

A family names the field of the spec it fills and every spelling of its key. A value of the wrong
type or out of range is a ConfigError; so are two spellings that disagree, and a missing key unless
the family says what its absence means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridplan.config.spec import How, Source
from hybridplan.errors import ConfigError

MOST_LAYERS = 4096
MOST_SIZE = 1 << 40
MOST_LIST = 65536
LAYER_COUNT_KEYS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")


@dataclass(frozen=True, slots=True)
class Absent:
    """What a missing key stands for: the value, and a sentence for the sources."""

    value: Any
    reason: str
    how: How = "assumed"


def shown(value: object) -> str:
    """A JSON value as an error shows it: short, and on one line."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return f'the string "{value[:40]}"'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a whole number of {value.bit_length()} bits"
    return str(value)


class Fields:
    """One object of a config file. ``None`` (JSON null) counts as absent everywhere."""

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
        file: str,
        path: str = "",
        sources: dict[str, Source] | None = None,
        notes: list[str] | None = None,
    ) -> None:
        self.data = data
        self.file = file
        self.path = path
        self.sources: dict[str, Source] = {} if sources is None else sources
        self.notes: list[str] = [] if notes is None else notes

    def at(self, key: str) -> str:
        """The path of a key of this object, as errors and sources spell it."""
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None

    def fail(self, sentence: str) -> ConfigError:
        return ConfigError(f"{self.file}: {sentence}")

    def missing(self, *keys: str) -> ConfigError:
        names = " or ".join(self.at(key) for key in keys)
        return self.fail(f"the key {names} is missing, and without it the memory is not known")

    def record(self, field: str, reason: str, how: How = "derived") -> None:
        self.sources.setdefault(field, Source(reason, how))

    def section(self, key: str) -> Fields:
        """The object under a key (ConfigError if there is none)."""
        value = self.data.get(key)
        if value is None:
            raise self.missing(key)
        if not isinstance(value, dict):
            raise self.fail(f"{self.at(key)} must be an object, not {shown(value)}")
        return Fields(
            value, file=self.file, path=self.at(key), sources=self.sources, notes=self.notes
        )

    def _pick(self, field: str, keys: tuple[str, ...], absent: Absent | None) -> tuple[str, Any]:
        found = [(key, self.data[key]) for key in keys if self.has(key)]
        for key, value in found[1:]:
            if value != found[0][1] or type(value) is not type(found[0][1]):
                raise self.fail(
                    f"{self.at(found[0][0])} is {shown(found[0][1])} but {self.at(key)} is "
                    f"{shown(value)}; they name the same thing"
                )
        if found:
            self.sources[field] = Source(self.at(found[0][0]))
            return found[0]
        if absent is None:
            raise self.missing(*keys)
        self.sources[field] = Source(absent.reason, absent.how)
        return keys[0], absent.value

    def whole(
        self,
        field: str,
        *keys: str,
        least: int = 1,
        most: int = MOST_SIZE,
        absent: Absent | None = None,
    ) -> int:
        """A whole number in [least, most]; a string, a bool or a fraction is an error."""
        key, value = self._pick(field, keys, absent)
        return self._checked_whole(key, value, least, most)

    def _checked_whole(self, key: str, value: object, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(f"{self.at(key)} must be a whole number, not {shown(value)}")
        if not least <= value <= most:
            raise self.fail(
                f"{self.at(key)} is {shown(value)}, outside the possible {least} to {most}"
            )
        return value

    def maybe_whole(self, field: str, *keys: str, least: int = 1) -> int | None:
        if not any(self.has(key) for key in keys):
            return None
        return self.whole(field, *keys, least=least)

    def flag(self, field: str, key: str, default: bool) -> bool:
        """A boolean that decides weights only, so its class default may stand in for it."""
        _, value = self._pick(field, (key,), Absent(default, f"{self.at(key)} absent: {default}"))
        if not isinstance(value, bool):
            raise self.fail(f"{self.at(key)} must be true or false, not {shown(value)}")
        return value

    def maybe_flag(self, field: str, *keys: str) -> bool | None:
        """A boolean, or None where the file is silent."""
        if not any(self.has(key) for key in keys):
            return None
        key, value = self._pick(field, keys, None)
        if not isinstance(value, bool):
            raise self.fail(f"{self.at(key)} must be true or false, not {shown(value)}")
        return value

    def text(self, field: str, *keys: str, absent: Absent | None = None) -> str:
        key, value = self._pick(field, keys, absent)
        if not isinstance(value, str):
            raise self.fail(f"{self.at(key)} must be a string, not {shown(value)}")
        return value

    def items(self, key: str) -> list[Any]:
        """The list under a key (ConfigError if there is none, or if it is absurdly long)."""
        value = self.data.get(key)
        if value is None:
            raise self.missing(key)
        if not isinstance(value, list):
            raise self.fail(f"{self.at(key)} must be a list, not {shown(value)}")
        if len(value) > MOST_LIST:
            raise self.fail(
                f"{self.at(key)} has {len(value)} entries; the most read is {MOST_LIST}"
            )
        return value

    def wholes(self, key: str, *, least: int = 0, most: int = MOST_SIZE) -> list[int]:
        return [self._checked_whole(key, value, least, most) for value in self.items(key)]

    def words(self, key: str) -> list[str]:
        values = self.items(key)
        for value in values:
            if not isinstance(value, str):
                raise self.fail(f"{self.at(key)} must hold strings, not {shown(value)}")
        return values

    def per_layer(self, key: str, layers: int, values: Sequence[Any]) -> None:
        """Insist that a list has one entry per layer."""
        if len(values) != layers:
            raise self.fail(
                f"{self.at(key)} has {len(values)} entries but the model has {layers} layers"
            )

    def layer_count(self, absent: Absent | None = None) -> int:
        """The number of layers, under whichever of its names the file uses."""
        if absent is None and not any(self.has(key) for key in LAYER_COUNT_KEYS):
            raise self.missing(LAYER_COUNT_KEYS[0])
        return self.whole("model.layers", *LAYER_COUNT_KEYS, most=MOST_LAYERS, absent=absent)

    def agree(self, what: str, one: str, first: object, two: str, second: object) -> None:
        """Insist that two sources of one fact agree; the error names both keys."""
        if first != second:
            detail = ""
            if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
                index = next(
                    i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b
                )
                detail = f" (layer {index}: {first[index]} against {second[index]})"
            raise self.fail(
                f"{self.at(one)} and {self.at(two)} disagree about {what}{detail}; "
                "correct one of them or remove it"
            )
