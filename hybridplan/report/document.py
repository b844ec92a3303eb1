"""Typed results as JSON documents, without pydantic: keys are the fields, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def document(value: object) -> Any:
    """Dataclasses become objects, tuples lists; everything else must be JSON already."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: document(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): document(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [document(item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form")
