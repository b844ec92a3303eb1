"""A matplotlib canvas that is loaded only when a picture is asked for, and saves the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridplan.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_UNDATED: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def check_target(path: Path) -> str:
    """The suffix of a picture's path. Raises InputError where ``drawing`` could not write it."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"--plot {path}: the name must end in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: the folder {path.parent} does not exist")
    return suffix


@contextmanager
def figure(path: Path, *, size_inches: tuple[float, float]) -> Iterator[Figure]:
    """A figure to draw on; it is written to ``path`` when the block ends.

    The file's suffix decides its format; the same drawing gives the same bytes. Raises InputError
    for a suffix that is none of FORMATS or a path that cannot be written, MissingExtraError
    without matplotlib.
    """
    suffix = check_target(path)
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(
            '--plot needs matplotlib; install it with: pip install "hybridplan[report]"'
        ) from None
    with mpl.rc_context({"svg.hashsalt": "hybridplan", "svg.fonttype": "none"}):
        drawn = Figure(figsize=size_inches, layout="constrained")
        yield drawn
        try:
            drawn.savefig(path, dpi=150, metadata=_UNDATED.get(suffix))
        except OSError as error:
            raise InputError(f"--plot {path}: cannot be written ({error.strerror})") from None


@contextmanager
def drawing(path: Path, *, size_inches: tuple[float, float] = (8, 5)) -> Iterator[Axes]:
    """One pair of axes on a :func:`figure`."""
    with figure(path, size_inches=size_inches) as drawn:
        yield drawn.subplots()
