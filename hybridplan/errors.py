"""Errors a user can act on. Each carries one sentence and the exit code it stands for."""

from __future__ import annotations


class HybridplanError(Exception):
    """Base of every error that is answered with a sentence instead of a traceback."""

    exit_code = 2
    kind = "error"

    @property
    def sentence(self) -> str:
        """The message on one line, as the command line prints it."""
        return " ".join(str(self).split())


class InputError(HybridplanError):
    """Bad usage or bad input (exit 2): what was asked, what disagrees, what would mend it."""

    kind = "input"


class ConfigError(InputError):
    """A config.json that cannot be read as a model; names the key and the file."""

    kind = "config"


class MissingExtraError(InputError):
    """A command needs a package of an optional extra; names the extra to install."""

    kind = "missing-extra"


class RefusalError(HybridplanError):
    """A good question whose answer is no (exit 1): it does not fit, or the engine refuses."""

    exit_code = 1
    kind = "refused"
