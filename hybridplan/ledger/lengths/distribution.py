"""Request lengths as a distribution: written by hand, or the lengths of a trace."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

from hybridplan.errors import InputError

MAX_TOKENS = 1 << 32
_SUFFIXES = {"": 1, "k": 1_000, "ki": 1 << 10, "m": 1_000_000, "mi": 1 << 20}
_TOKENS = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kKmM]?i?)")
_QUANTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")
FORMS = "lognormal:p50=2k,p99=60k; uniform:512-8k; fixed:4096"


class Lengths(Protocol):
    """Lengths in tokens, prompt and output together, to draw from with a seeded generator."""

    @property
    def name(self) -> str:
        """How it was given, for the report."""

    def draw(self, rng: random.Random) -> int:
        """One length, at least 1."""


@dataclass(frozen=True, slots=True)
class Empirical:
    """The lengths of a trace, drawn with replacement."""

    name: str
    values: tuple[int, ...]

    def draw(self, rng: random.Random) -> int:
        return rng.choice(self.values)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """exp(N(mu, sigma)) tokens, rounded, capped at ``cap_tokens``."""

    name: str
    mu: float
    sigma: float
    cap_tokens: int

    def draw(self, rng: random.Random) -> int:
        exponent = min(rng.gauss(self.mu, self.sigma), math.log(self.cap_tokens))
        return max(1, round(math.exp(exponent)))


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every whole number of tokens between the bounds alike."""

    name: str
    low_tokens: int
    high_tokens: int

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low_tokens, self.high_tokens)


def empirical(values: Sequence[int], name: str) -> Empirical:
    """The distribution of observed lengths. Raises InputError when there are none."""
    positive = tuple(value for value in values if value > 0)
    if not positive:
        raise InputError(f"{name} holds no request with a length above 0")
    return Empirical(name, positive)


def read_column(path: Path) -> Empirical | None:
    """The lengths of a CSV with one column, its header optional; None for any other file.

    Raises InputError naming the line that is no length.
    """
    if path.suffix != ".csv":
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = [(number, line.strip()) for number, line in enumerate(file, 1) if line.strip()]
    if not lines or "," in lines[0][1] or ";" in lines[0][1] or "\t" in lines[0][1]:
        return None
    if not lines[0][1].isdigit():
        del lines[0]
    for number, line in lines:
        if not (line.isascii() and line.isdigit()) or int(line[:11]) > MAX_TOKENS:
            raise InputError(
                f"{path} line {number} is {line[:40]!r}; a CSV of one column holds a length in "
                f"tokens of at most {MAX_TOKENS:,} in each line"
            )
    return empirical([int(line) for _, line in lines], path.name)


def parse_tokens(text: str, where: str) -> int:
    """Tokens of "4096", "2k" (2,000), "2ki" (2,048), "1.5M". Raises InputError naming ``where``."""
    match = _TOKENS.fullmatch(text.strip())
    if not match:
        raise InputError(f"{where}: {text!r} is not a number of tokens such as 4096, 2k or 128ki")
    number, suffix = match.groups()
    tokens = int(float(number) * _SUFFIXES[suffix.lower()]) if suffix.lower() in _SUFFIXES else 0
    if not 1 <= tokens <= MAX_TOKENS:
        raise InputError(f"{where}: {text!r} must be between 1 and {MAX_TOKENS:,} tokens")
    return tokens


def is_written(text: str) -> bool:
    """Whether ``text`` is one of the forms below rather than a file."""
    return text.partition(":")[0] in ("lognormal", "uniform", "fixed") and ":" in text


def parse_lengths(text: str, cap_tokens: int) -> Lengths:
    """A distribution written as text (``FORMS``); draws never exceed ``cap_tokens``.

    A lognormal is given by two of its quantiles, p50=2k,p99=60k. Raises InputError otherwise.
    """
    kind, _, rest = text.partition(":")
    where = f"--lengths {text}"
    if kind == "fixed":
        tokens = min(parse_tokens(rest, where), cap_tokens)
        return Uniform(text, tokens, tokens)
    if kind == "uniform":
        low_text, dash, high_text = rest.partition("-")
        if not dash:
            raise InputError(f"{where}: write two bounds, as in uniform:512-8k")
        low, high = parse_tokens(low_text, where), parse_tokens(high_text, where)
        if low > high:
            raise InputError(f"{where}: the lower bound {low:,} exceeds the upper bound {high:,}")
        return Uniform(text, min(low, cap_tokens), min(high, cap_tokens))
    if kind != "lognormal":
        raise InputError(f"{where}: not a distribution; write one of {FORMS}")
    return _lognormal(text, rest, where, cap_tokens)


def _lognormal(text: str, rest: str, where: str, cap_tokens: int) -> LogNormal:
    points = []
    for part in rest.split(","):
        key, _, value = part.partition("=")
        match = _QUANTILE.fullmatch(key.strip())
        if not match:
            raise InputError(f"{where}: {part!r} is not a quantile such as p50=2k")
        share = float(match.group(1)) / 100
        if not 0 < share < 1:
            raise InputError(f"{where}: {key} is not a quantile between p0 and p100")
        points.append((share, parse_tokens(value, where)))
    if len(points) != 2 or points[0][0] == points[1][0]:
        raise InputError(f"{where}: give two different quantiles, as in lognormal:p50=2k,p99=60k")
    (low_share, low), (high_share, high) = sorted(points)
    if low > high:
        raise InputError(f"{where}: the higher quantile {high:,} is below the lower one {low:,}")
    normal = NormalDist()
    z_low, z_high = normal.inv_cdf(low_share), normal.inv_cdf(high_share)
    sigma = (math.log(high) - math.log(low)) / (z_high - z_low)
    return LogNormal(text, math.log(low) - z_low * sigma, sigma, cap_tokens)
