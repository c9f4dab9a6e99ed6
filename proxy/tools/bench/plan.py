"""What a bench sends where: endpoints, the options of one run, and the plan that follows from them.

Drawn from the seed before anything is sent, so every endpoint gets the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from pathlib import Path
from random import Random

from proxy.errors import ConfigError
from proxy.sim import traces
from proxy.sim.traces import Request
from proxy.tools import prompts
from proxy.tools.bench.load import Shot, Workload, drawn, rounds
from proxy.tools.bench.objective import Objective
from proxy.tools.prompts import Prompt

DEFAULT_OBJECTIVE = Objective(ttft=0.5, tpot=0.03)
"""A first token before half a second, then faster than anybody reads (33 tokens/s)."""

_LEAST_SECONDS = 0.001
"""Of the plan for each request, so that a trace of requests that all come at once has a length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What is measured, and the admin listener that tells of it where it is a specswitch."""

    name: str
    url: str
    admin_url: str | None = None
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One run. Rates are requests a second."""

    endpoints: Sequence[Endpoint]
    workload: Workload = Workload.POISSON
    rates: Sequence[float] = ()
    """Empty: a trace as fast as it was recorded."""
    requests: int = 200
    """At each rate."""
    rounds: int = 2
    together: bool = False
    trace: Path | None = None
    """None: the one that comes along."""
    prompts: Path | None = None
    output_tokens: int | None = None
    ignore_eos: bool = True
    fresh: bool = True
    """Whether each prompt begins with a mark of its own, so that no cache answers for a server."""
    objective: Objective = DEFAULT_OBJECTIVE
    most_in_flight: int = 1024
    timeout: float = 600.0
    warm_up: int = 2
    model: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError, with the option of each finding, if these do not go together."""
        names = [endpoint.name for endpoint in self.endpoints]
        rates, traced = self.rates, self.workload is Workload.TRACE
        findings = [
            ("--url", "at least one is needed") if not names else None,
            ("--url", "two have the same name") if len(set(names)) < len(names) else None,
            ("--rate", "is needed for all but a trace") if not rates and not traced else None,
            ("--rate", "must be above 0, and finite") if not all(map(_usable, rates)) else None,
            ("--rate", "two are the same") if len(set(rates)) < len(rates) else None,
            ("--trace", "goes with --workload trace") if self.trace and not traced else None,
        ]
        found = [finding for finding in findings if finding is not None]
        if found:
            raise ConfigError(found)


def _usable(rate: float) -> bool:
    return isfinite(rate) and rate > 0


def endpoints(
    urls: Sequence[str], admin_urls: Sequence[str], api_keys: Sequence[str]
) -> list[Endpoint]:
    """Return the endpoints that the options name: `NAME=URL`, or a URL that is its own name.

    A key may stand alone, then it is for all that have none of their own.

    Raises:
        ConfigError: two have one name, an admin URL is for nobody, or a URL holds a password, which
            would stand in every report.
    """
    if any("@" in url for url in urls):
        raise ConfigError(
            [("--url", "must hold no user or password: there is SPECSWITCH_BENCH_API_KEY")]
        )
    named = dict(_named(url) for url in urls)
    if len(named) < len(urls):
        raise ConfigError([("--url", "two have the same name")])
    admin = dict(_named(url) for url in admin_urls)
    strangers = [name for name in admin if name not in named]
    if strangers:
        raise ConfigError([("--admin-url", f"no --url has the name {strangers[0]!r}")])
    keys, key_of_all = {}, None
    for key in api_keys:
        name, equals, rest = key.partition("=")
        if equals and name in named:
            keys[name] = rest
        else:
            key_of_all = key
    return [
        Endpoint(name=name, url=url, admin_url=admin.get(name), api_key=keys.get(name, key_of_all))
        for name, url in named.items()
    ]


def _named(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if equals and "/" not in name:
        return name, url
    return text.removeprefix("http://").removeprefix("https://").rstrip("/"), text


def conditions(options: Options) -> Mapping[str, object]:
    """Return what the figures hang on, for whoever reads them later."""
    return {
        "workload": options.workload,
        "rates": list(options.rates),
        "requests": options.requests,
        "rounds": 1 if options.together else options.rounds,
        "order": "together" if options.together else "alternating",
        "trace": _trace(options),
        "prompts": "built in" if options.prompts is None else options.prompts.name,
        "output_tokens": options.output_tokens,
        "ignore_eos": options.ignore_eos,
        "fresh_prompts": options.fresh,
        "objective": {"ttft": options.objective.ttft, "tpot": options.objective.tpot},
        "max_in_flight": options.most_in_flight,
        "seed": options.seed,
        "urls": {endpoint.name: endpoint.url for endpoint in options.endpoints},
    }


@dataclass(frozen=True, slots=True)
class Level:
    """One load: its rate, None for a trace as it was recorded, and its rounds."""

    rate: float | None
    rounds: Sequence[Sequence[Shot]]


def planned_seconds(shots: Sequence[Shot]) -> Iterator[float]:
    """Return for each request of a round the seconds since the one before: how far it brings us."""
    times = [0.0, *(shot.at for shot in shots)]
    return (_LEAST_SECONDS + after - before for before, after in pairwise(times))


def plan(options: Options) -> list[Level]:
    """Return what will be sent to each endpoint; raises SpecswitchError for a bad file."""
    found = prompts.builtin() if options.prompts is None else prompts.read(options.prompts)
    number = 1 if options.together else options.rounds
    if options.workload is Workload.TRACE:
        path = options.trace
        recorded = traces.conversation() if path is None else traces.read(path)
        return [
            Level(rate, rounds(_traced(options, recorded, rate, found), number))
            for rate in options.rates or (None,)
        ]
    return [Level(rate, rounds(_drawn(options, rate, found), number)) for rate in options.rates]


def _drawn(options: Options, rate: float, found: Sequence[Prompt]) -> list[Shot]:
    return drawn(
        options.workload,
        rate,
        found,
        Random(f"{options.seed} {rate}"),  # noqa: S311 - arrivals that can be repeated
        count=options.requests,
        output_tokens=options.output_tokens,
    )


def _traced(
    options: Options, recorded: Sequence[Request], rate: float | None, found: Sequence[Prompt]
) -> list[Shot]:
    """The requests of a trace: its times and lengths, with prompts that are made as long."""
    trace = recorded if rate is None else traces.scaled(recorded, rate)
    random = Random(options.seed)  # noqa: S311 - prompts that can be repeated
    ordered = sorted(found, key=lambda prompt: prompt.tokens)
    return [
        Shot(
            request.at,
            random.choice(_fitting(ordered, request.prompt_tokens)),
            options.output_tokens or request.output_tokens,
            request.prompt_tokens,
        )
        for request in trace[: options.requests]
    ]


def _fitting(ordered: Sequence[Prompt], tokens: int) -> Sequence[Prompt]:
    """Those that are not too long already, at least the shortest."""
    return [prompt for prompt in ordered if prompt.tokens <= tokens] or ordered[:1]


def _trace(options: Options) -> str | None:
    if options.workload is not Workload.TRACE:
        return None
    return "built in" if options.trace is None else options.trace.name
