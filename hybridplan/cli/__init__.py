"""The command line: parses, calls the library, prints the report, returns the exit code.

One module per command, imported only when that command is asked for, so that ``--help`` and
``ledger`` stay quick. A module offers ``register(app)``; its commands return the exit code
(None means 0) and raise HybridplanError for everything a user can mend.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper

import typer

from hybridplan import __version__
from hybridplan.cli.common import INTERRUPTED, Said, print_json
from hybridplan.cli.completion import teach, words_being_completed
from hybridplan.errors import HybridplanError

BROKEN_PIPE = 141

COMMANDS: dict[str, tuple[str, str]] = {
    "ledger": ("hybridplan.cli.ledger", "Bytes of a model's caches, states and weights."),
    "plan": ("hybridplan.cli.plan", "What the engine will say at boot, before it boots."),
    "fit": ("hybridplan.cli.fit", "Whether a model fits a card; exit 0 fits, 1 does not."),
    "explain-log": ("hybridplan.cli.explain_log", "Explain the memory lines of a boot log."),
    "models": ("hybridplan.cli.models", "The catalogue of shipped configs."),
    "trace": ("hybridplan.cli.trace", "What a request trace holds, and its conversion."),
    "simulate": (
        "hybridplan.cli.simulate",
        "Replay a request trace through the engine's prefix cache.",
    ),
    "compare": (
        "hybridplan.cli.compare",
        "Every cache policy on one trace at one memory, and bounds.",
    ),
    "explore": ("hybridplan.cli.explore", "A page with sliders that starts at a model's shapes."),
    "report": ("hybridplan.cli.report", "A trace and a model on one page: plan, hits, losses."),
    "recommend": (
        "hybridplan.cli.recommend",
        "Flags that get more hits out of a trace, and how to set them.",
    ),
    "sweep": (
        "hybridplan.cli.sweep",
        "A grid of configurations over traces; resumable.",
    ),
    "measure": ("hybridplan.cli.measure", "Hold the predictions against your own GPU."),
    "calibrate": (
        "hybridplan.cli.calibrate",
        "Fit step times to a log of served requests, and judge them.",
    ),
    "schema": ("hybridplan.cli.schema", "JSON schema of a command's --json output."),
    "help": ("hybridplan.cli.help", "The manual: a page for each command, engine and term."),
}


def _stub(module: str) -> Callable[[], None]:
    def command() -> None:
        raise AssertionError(f"{module} was not loaded")

    return command


def build_app(wanted: str | None) -> typer.Typer:
    """The application, with the wanted command real and the others known by name only."""
    app = typer.Typer(
        name="hybridplan",
        help="Plan memory and prefix caching for hybrid language models.",
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def say_version(asked: bool) -> None:
        if asked:
            typer.echo(f"hybridplan {__version__}")
            raise typer.Exit

    @app.callback()
    def root(
        version: bool = typer.Option(
            False, "--version", help="Print the version.", is_eager=True, callback=say_version
        ),
    ) -> None:
        """Options of the program itself."""

    for name, (module, summary) in COMMANDS.items():
        if wanted == name:
            import_module(module).register(app)
        else:
            app.command(name, help=summary)(_stub(module))
    return app


def _wanted(arguments: Sequence[str]) -> str | None:
    return next((word for word in arguments if word in COMMANDS), None)


def _report_error(sentence: str, kind: str, exit_code: int, as_json: bool) -> int:
    if as_json:
        from hybridplan.report.document import document
        from hybridplan.report.failure import SCHEMA_VERSION, Failure, FailureReport

        print_json(document(FailureReport(SCHEMA_VERSION, Failure(kind, sentence, exit_code))))
    sys.stderr.write(f"hybridplan: {sentence}\n")
    return exit_code


def _drop_output() -> None:
    """Let nothing that is still buffered fail again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _ready_streams() -> bool:
    """False where stdout is closed. What a stream cannot encode becomes ?, never an exception."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    if sys.stdout is None:
        return False
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return True


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: 0 yes, 1 no, 2 bad input, 130 interrupted.

    141, as shells spell it, where the reader of a pipe left before the answer ended.
    """
    as_json = "--json" in arguments
    if not _ready_streams():
        return _report_error("the output is closed", "system", 2, as_json=False)
    try:
        completing = words_being_completed()
        app = build_app(_wanted(arguments if completing is None else completing))
        if completing is not None:
            teach(app)
        result = app(list(arguments) or ["--help"], prog_name="hybridplan", standalone_mode=False)
        sys.stdout.flush()
    except HybridplanError as error:
        return _report_error(error.sentence, error.kind, error.exit_code, as_json)
    except typer.TyperException as error:
        sentence = " ".join(error.format_message().split())
        return _report_error(sentence, "usage", 2, as_json) if sentence else 2
    except (KeyboardInterrupt, typer.Abort):
        return _report_error("interrupted", "interrupted", INTERRUPTED, as_json)
    except (BrokenPipeError, SystemExit) as error:
        # typer ends a run with SystemExit(1) when a pipe breaks, and with another code elsewhere.
        if isinstance(error, SystemExit) and error.code != 1:
            raise
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        _drop_output()
        sentence = f"{error.filename or 'the output'}: {error.strerror or error}"
        return _report_error(sentence, "system", 2, as_json=False)
    if result == INTERRUPTED and not isinstance(result, Said):
        return _report_error("interrupted", "interrupted", INTERRUPTED, as_json=False)
    return result if isinstance(result, int) else 0


def main() -> None:
    """Entry point of the ``hybridplan`` script."""
    sys.exit(run(sys.argv[1:]))
