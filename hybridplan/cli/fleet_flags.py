"""Options of ``simulate`` that ask for several engines, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridplan.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hybridplan.ledger.calibration import Calibration
    from hybridplan.sim.fleet.ask import FleetAsk, HostAsk
    from hybridplan.sim.fleet.link import LinkSpeed
    from hybridplan.sim.fleet.result import FleetResult
    from hybridplan.sim.fleet.routers import RouterAsk
    from hybridplan.sim.run import SimulateAsk

_PANEL = "Fleet"


def _option(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_PANEL)


Replicas = Annotated[int | None, _option("--replicas", help="Engines alike behind a router.")]
Router = Annotated[
    str | None,
    _option("--router", help="round-robin, least-loaded, session, prefix-aware, or all: compare."),
]
RouterLoad = Annotated[
    str | None,
    _option("--router-load", help="What a load is: outstanding requests, or prompt tokens."),
]
CacheThreshold = Annotated[
    float | None,
    _option("--router-cache-threshold", help="Prefix-aware: least share of a prompt (0.3)."),
]
BalanceAbs = Annotated[
    int | None,
    _option("--router-balance-abs", help="Prefix-aware: uneven beyond this many requests (64)."),
]
BalanceRel = Annotated[
    float | None,
    _option("--router-balance-rel", help="Prefix-aware: and beyond this ratio (1.5)."),
]
IndexTokens = Annotated[
    int | None,
    _option("--router-index-tokens", help="Prefix-aware: tokens remembered of each replica."),
]
FindReplicas = Annotated[
    bool, _option("--find-replicas", help="Timed: the fewest replicas that keep the --slo.")
]
MostReplicas = Annotated[
    int | None, _option("--most-replicas", help="Where --find-replicas gives up (64).")
]
PrefillReplicas = Annotated[
    int | None, _option("--prefill-replicas", help="vLLM: engines that only prefill.")
]
DecodeReplicas = Annotated[
    int | None, _option("--decode-replicas", help="vLLM: engines that only decode.")
]
TransferSpeed = Annotated[
    float | None,
    _option("--transfer-gb-s", help="GB/s of a rank's link between prefill and decode."),
]
TransferLatency = Annotated[
    float | None, _option("--transfer-latency-ms", help="What every transfer takes besides (0).")
]
HostGib = Annotated[
    float | None,
    _option("--host-gib", help="vLLM: a host tier of this many GiB a rank (assumed policy)."),
]
HostSpeed = Annotated[
    float | None,
    _option(
        "--host-gb-s", help="GB/s from the host to a rank's device, in place of a calibration's."
    ),
]
Jobs = Annotated[
    int | None, _option("--jobs", help="Processes, where replicas do not depend on each other.")
]
Scheduler = Annotated[
    str | None, _option("--scheduler", help="A Dask or Ray cluster instead, as of sweep.")
]
References = Annotated[
    bool,
    _option(
        "--references/--no-references",
        help="Replay one replica with all the memory too, to see what routing loses.",
    ),
]

_OF_ROUTER = {
    "router_load": ("least-loaded", "prefix-aware"),
    "router_cache_threshold": ("prefix-aware",),
    "router_balance_abs": ("prefix-aware",),
    "router_balance_rel": ("prefix-aware",),
    "router_index_tokens": ("prefix-aware",),
}
_OF_ONE_ENGINE = ("events", "plot")


def asked(given: Mapping[str, Any]) -> bool:
    """Whether the options ask for more than one plain engine. Raises InputError for those that
    say how to serve a fleet where there is none."""
    if (
        given["replicas"] not in (None, 1)
        or given["find_replicas"]
        or given["prefill_replicas"] is not None
        or given["decode_replicas"] is not None
        or given["host_gib"] is not None
    ):
        return True
    needs = {
        "router": "--replicas N",
        **dict.fromkeys(_OF_ROUTER, "--replicas N"),
        "jobs": "--replicas N",
        "scheduler": "--replicas N",
        "most_replicas": "--find-replicas",
        "transfer_gb_s": "--prefill-replicas P --decode-replicas D",
        "transfer_latency_ms": "--prefill-replicas P --decode-replicas D",
        "host_gb_s": "--host-gib G",
    }
    for name, other in needs.items():
        one_replica = given["replicas"] == 1 and other == "--replicas N"
        if given[name] is not None and not one_replica:
            raise InputError(f"{_flag(name)} {given[name]} says nothing without {other}")
    if given["replicas"] == 1:
        _router(given)
        _processes(given)
    return False


def answer(base: SimulateAsk, given: Mapping[str, Any]) -> int:
    """Replay the fleet, print it, and give the exit code: 1 where an SLO was asked and not kept."""
    from hybridplan.cli.common import interrupted, print_json, print_report
    from hybridplan.cli.progress import watching
    from hybridplan.report.document import document
    from hybridplan.report.fleet import routers_screen, screen, size_screen
    from hybridplan.sim.export import fleet_writer
    from hybridplan.sim.fleet.compare import compare_routers
    from hybridplan.sim.fleet.find import find_replicas
    from hybridplan.sim.fleet.run import run_fleet

    ask = _fleet(base, given)
    found: Any
    shown: Callable[[Any], list[RenderableType]]
    jobs, scheduler = _processes(given)
    per_request = _per_request(given)
    if given["most_replicas"] is not None and not given["find_replicas"]:
        raise InputError("--most-replicas bounds a search; give --find-replicas or drop it")
    with ExitStack() as stack:
        write = per_request and stack.enter_context(fleet_writer(per_request, ask.names))
        watch = stack.enter_context(watching(lambda: sum(1 for _ in base.trace.requests())))
        if given["find_replicas"]:
            most = given["most_replicas"] if given["most_replicas"] is not None else 64
            size = find_replicas(ask, most=most, jobs=jobs, scheduler=scheduler, watch=watch)
            found, shown, kept = size, size_screen, size.replicas is not None
        elif given["router"] == "all":
            table = compare_routers(ask, jobs=jobs, scheduler=scheduler, watch=watch)
            kept = any(_kept(one) for one in table.answers)
            found, shown = table, routers_screen
        else:
            result = run_fleet(
                ask, jobs=jobs, scheduler=scheduler, on_outcome=write or None, watch=watch
            )
            found, shown, kept = result, screen, _kept(result)
    if given["json"]:
        print_json(document(found))
    else:
        print_report(*shown(found))
    stage = found.interrupted
    if stage:
        done = ": what was done is shown" if stage is True else f" during the {stage}"
        return interrupted(f"interrupted{done}")
    return 0 if kept else 1


def _processes(given: Mapping[str, Any]) -> tuple[int, str | None]:
    """Local processes and the cluster's address; InputError where one of them is none."""
    jobs, scheduler = given["jobs"], given["scheduler"]
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs is {jobs}; it must be 1 or more")
    if scheduler is None:
        return jobs or 1, None
    if jobs is not None:
        raise InputError(f"--jobs {jobs} counts local processes; drop it beside --scheduler")
    if "://" not in scheduler:
        raise InputError(
            f"--scheduler {scheduler!r} is neither tcp://HOST:PORT nor ray://HOST:PORT"
        )
    return 1, str(scheduler)


def _per_request(given: Mapping[str, Any]) -> Path | None:
    """Where outcomes go; InputError where they are not those of one replay in one process."""
    path: Path | None = given["per_request"]
    if path is None:
        return None
    if given["find_replicas"] or given["router"] == "all":
        many = "--find-replicas" if given["find_replicas"] else "--router all"
        raise InputError(
            f"--per-request {path} is of one fleet and {many} replays several; name --replicas and"
            " one --router, or drop it"
        )
    if given["scheduler"] is not None or (given["jobs"] or 1) > 1:
        spread = "--scheduler" if given["scheduler"] is not None else f"--jobs {given['jobs']}"
        raise InputError(
            f"--per-request {path} is written by one process; drop {spread} or --per-request"
        )
    return path


def _kept(result: FleetResult) -> bool:
    """Whether the SLO was kept, or none was asked."""
    return result.attained is None or result.attained.kept


def _fleet(base: SimulateAsk, given: Mapping[str, Any]) -> FleetAsk:
    from hybridplan.sim.fleet.ask import FleetAsk

    for name in _OF_ONE_ENGINE:
        value: Path | None = given[name]
        if value is not None:
            raise InputError(
                f"{_flag(name)} {value} is of one engine and a fleet was asked for; drop it, or"
                " drop what asks for the fleet"
            )
    if given["advice"] == "full":
        raise InputError("--advice full looks for flags of one engine; drop it")
    if given["find_rate"]:
        raise InputError(
            "--find-rate varies the load of one engine; with a fleet, --find-replicas varies its"
            " size"
        )
    prefill, decode = given["prefill_replicas"], given["decode_replicas"]
    if (prefill is None) != (decode is None):
        there, missing = ("prefill", "decode") if decode is None else ("decode", "prefill")
        raise InputError(
            f"--{there}-replicas {prefill if decode is None else decode} needs"
            f" --{missing}-replicas too"
        )
    for name in ("prefill_replicas", "decode_replicas"):
        if given[name] is not None and given[name] < 1:
            raise InputError(
                f"{_flag(name)} {given[name]}: give 1 or more of each, or --replicas N for engines"
                " that do both"
            )
    replicas = given["replicas"]
    if prefill is not None and replicas is not None:
        raise InputError(
            f"--replicas {replicas} are engines that do both, and --prefill-replicas {prefill}"
            " only prefill; give one"
        )
    if given["find_replicas"] and given["router"] == "all":
        raise InputError("--find-replicas searches with one router and --router is all; name one")
    if given["find_replicas"] and (replicas is not None or prefill is not None):
        raise InputError("--find-replicas looks for the number; drop --replicas and the like")
    count = prefill if prefill is not None else replicas
    return FleetAsk(
        base=base,
        replicas=1 if count is None else count,
        router=_router(given),
        decode_replicas=0 if decode is None else decode,
        transfer=_transfer(given, decode is not None),
        host=_host(given, base.timing.calibration),
        references=given["references"],
    )


def _router(given: Mapping[str, Any]) -> RouterAsk:
    from hybridplan.sim.fleet.routers import ROUTERS, RouterAsk

    kind = "round-robin" if given["router"] is None else given["router"]
    if kind != "all" and kind not in ROUTERS:
        raise InputError(f"--router {kind!r} is not known; use {', '.join(ROUTERS)} or all")
    chosen = {}
    for name, kinds in _OF_ROUTER.items():
        if given[name] is None:
            continue
        if kind != "all" and kind not in kinds:
            raise InputError(
                f"{_flag(name)} {given[name]} is of router {' or '.join(kinds)} and the router is"
                f" {kind}"
            )
        chosen[name.removeprefix("router_")] = given[name]
    return RouterAsk(**chosen) if kind == "all" else RouterAsk(kind, **chosen)


def _transfer(given: Mapping[str, Any], apart: bool) -> LinkSpeed | None:
    from hybridplan.sim.fleet.link import LinkSpeed

    speed, latency = given["transfer_gb_s"], given["transfer_latency_ms"]
    for name in ("transfer_gb_s", "transfer_latency_ms"):
        if given[name] is not None and not apart:
            raise InputError(
                f"{_flag(name)} {given[name]:g} is of --prefill-replicas and --decode-replicas;"
                " give them or drop it"
            )
    if speed is None:
        if latency is not None:
            raise InputError(f"--transfer-latency-ms {latency:g} needs --transfer-gb-s too")
        return None
    return LinkSpeed.of_gb_s(speed, "--transfer-gb-s", (latency or 0.0) / 1e3)


def _host(given: Mapping[str, Any], calibration: Calibration | None) -> HostAsk | None:
    """The tier; its link as given, else as the calibration has it from ``measure``."""
    from hybridplan.sim.fleet.ask import HostAsk
    from hybridplan.sim.fleet.link import LinkSpeed

    size, speed = given["host_gib"], given["host_gb_s"]
    if size is None:
        if speed is not None:
            raise InputError(f"--host-gb-s {speed:g} is of a host tier; give --host-gib")
        return None
    if not 0 < size <= 1 << 20:
        raise InputError(f"--host-gib {size:g} must be above 0 and at most 1,048,576")
    capacity_bytes = round(size * (1 << 30))
    if speed is not None:
        return HostAsk(capacity_bytes, LinkSpeed.of_gb_s(speed, "--host-gb-s"))
    known = calibration.constants if calibration is not None else {}
    rate, floor = (known.get(f"link.in_{name}") for name in ("bytes_per_s", "floor_s"))
    if calibration is None or rate is None:
        return HostAsk(capacity_bytes)
    measured = LinkSpeed(round(rate.value), floor.value if floor is not None else 0.0)
    return HostAsk(capacity_bytes, measured, calibration.card)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
