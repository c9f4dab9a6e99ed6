"""The sections: every key with its default and its checks, and the checks across keys.

The names and defaults are those of docs/configuration.md, which a test holds to this file. A key
that is not here is an error, so nothing is accepted and ignored.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, SecretStr

from proxy.config.addresses import Url, is_loopback, is_wildcard, same_host
from proxy.config.forms import size_text
from proxy.config.values import (
    Acceptance,
    ApiKeys,
    CaFile,
    Cap,
    CertificateFile,
    Changes,
    ControlWord,
    Count,
    CountOrNone,
    Factor,
    FileName,
    Flag,
    Host,
    Hosts,
    KeyFile,
    LogFormat,
    LogLevel,
    Origins,
    Port,
    ProbePath,
    Seconds,
    SecondsOrNone,
    Secret,
    Sequences,
    ServerUrl,
    Share,
    Size,
    TopologyWord,
    VerdictWord,
    pairs,
)
from proxy.core.words import Control, Topology

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB


class Section(BaseModel):
    """A table of the file: strict, so that `true` is no number, and without unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


class Listen(Section):
    """Where specswitch listens."""

    host: Host = "0.0.0.0"  # noqa: S104 - the endpoint is there to be reached
    """Address of the endpoint."""
    port: Port = 8000
    """Port of the endpoint; 0: any free one."""
    admin_host: Host = "127.0.0.1"
    """Address of the admin listener; beyond loopback it needs `auth.admin_token`."""
    admin_port: Port = 8001
    """Port of the admin listener; 0: any free one."""
    admin_hosts: Hosts = ()
    """Further names under which the admin listener may be called."""
    tls_cert: CertificateFile = None
    """PEM certificate chain of the endpoint, its own first; with `tls_key`: HTTPS."""
    tls_key: KeyFile = None
    """Its private key, PEM, without a passphrase."""
    cors_origins: Origins = ()
    """Origins whose web pages may call the endpoint; `["*"]`: any; empty: none."""
    metrics: Flag = False
    """Whether the endpoint has `/metrics`: SGLang's figures of the pair, as of one server."""


class Upstream(Section):
    """One server of the pair."""

    url: ServerUrl
    """Where the server is."""
    api_key: Secret = SecretStr("")
    """Sent to the server in place of the client's key; empty: the client's is passed on."""
    ca_file: CaFile = None
    """PEM certificates that an https server is checked against; empty: those of the system."""
    max_in_flight: Cap
    """Sequences it may have; `auto`: what it reports; 0: no cap."""


class SpecUpstream(Upstream):
    """The server that decodes speculatively."""

    url: ServerUrl = Url(secure=False, host="127.0.0.1", port=30001)
    max_in_flight: Cap = "auto"


class BaseUpstream(Upstream):
    """The server that does not; it queues by itself, hence no cap."""

    url: ServerUrl = Url(secure=False, host="127.0.0.1", port=30000)
    max_in_flight: Cap = 0


class Upstreams(Section):
    """The pair."""

    admin_api_key: Secret = SecretStr("")
    """Who presents it may have SGLang's administration done by both servers, which are asked with
    it; empty: nobody may."""
    spec: SpecUpstream = SpecUpstream()
    base: BaseUpstream = BaseUpstream()


class Policy(Section):
    """When speculation pays; docs/configuration.md says where the constants matter little."""

    control: ControlWord = Control.AUTO
    """The operator's word at start."""
    topology: TopologyWord = Topology.SHARED
    """Whether the servers share their GPUs: `shared` serves from one at a time, `separate` from
    both."""
    calibration: FileName = "calibration.json"
    """What `specswitch calibrate` wrote; empty: none. A file that is not there is none."""
    crossover: Sequences = 0.0
    """N* by hand, sequences in flight at which both servers give the same rate; 0: from the
    calibration."""
    allow_override: Flag = False
    """Whether clients may choose with `x-specswitch-route`."""
    up_factor: Factor = 1.5
    """Share of N* above which speculation is left at first, where λ* is known; else N* itself."""
    up_factor_min: Factor = 0.5
    """The least that this share falls to, by what follows each leaving."""
    up_factor_max: Factor = 3.0
    """The most that it rises to; both as `up_factor`: it stays."""
    gate_factor: Share = 0.25
    """Share of N* at or below which load counts as calm; between it and N* the mode stays."""
    rate_up: Factor = 1.3
    """Share of λ* above which speculation is left."""
    rate_down: Share = 0.9
    """Share of λ* below which it may return."""
    fast_window: Seconds = 5.0
    """Seconds: the time constant of the offered rate that leads away from speculation."""
    slow_window: Seconds = 30.0
    """Seconds: the same for the rate that leads back."""
    min_acceptance_length: Acceptance = "auto"
    """Tokens of a verify round below which, for 30 s, speculation is left; `auto`: where the
    calibration says that a lone request gains nothing; 0: no bound."""
    return_dwell: SecondsOrNone = 10.0
    """Seconds after leaving speculation before it may return."""
    count_window: Seconds = 10.0
    """Seconds: the time constant of the average of what is in flight, which leads back where λ* is
    not known. A return after n in flight takes about this x ln(n / gate)."""
    flap_limit: Changes = 4
    """Changes of mode within `flap_window` that are never exceeded."""
    flap_window: Seconds = 60.0
    """Seconds over which changes of mode are counted."""
    flap_hold: SecondsOrNone = 60.0
    """Seconds on base once the limit is reached."""


class Eligibility(Section):
    """Which requests may be decoded speculatively at all."""

    penalties: VerdictWord = "base"
    """Frequency, presence and repetition penalties."""
    min_p: VerdictWord = "base"
    """`min_p`."""
    min_tokens: VerdictWord = "base"
    """`min_tokens`."""
    custom_logit_processor: VerdictWord = "base"
    """A custom logit processor."""
    beam_search: VerdictWord = "base"
    """Beam search."""
    sampling_mask: VerdictWord = "base"
    """The sampling mask is asked for."""
    hidden_states: VerdictWord = "base"
    """Hidden states are asked for."""
    stored_state: VerdictWord = "base"
    """Stored responses, background work, sessions."""
    unpeeked: VerdictWord = "prefer"
    """A body over `limits.max_peek_bytes`."""
    context_limit: VerdictWord = "prefer"
    """Prompt and `max_tokens` may not fit the speculative server, which keeps some of the context
    for drafts."""
    lora: VerdictWord = "prefer"
    """A LoRA adapter."""
    structured_output: VerdictWord = "any"
    """JSON schema, regular expression, grammar."""
    logprobs: VerdictWord = "any"
    """Log probabilities are asked for."""
    short_output_tokens: CountOrNone = 1
    """Tokens: base is preferred for a `max_tokens` at or below this; 0: never."""
    max_spec_prompt_tokens: CountOrNone = 0
    """Tokens: base is preferred for an estimated prompt above this; 0: no bound."""


class Limits(Section):
    """How much is held at one time, and how long a client may take."""

    max_in_flight: Count = 2048
    """Sequences over both upstreams."""
    queue_size: CountOrNone = 2048
    """Requests in the waiting room; 0: refuse at once."""
    queue_timeout: SecondsOrNone = 30.0
    """Seconds that a request may wait; 0: refuse at once."""
    max_connections: Count = 8192
    """Client connections."""
    max_body_bytes: Size = 64 * _MIB
    """A request body."""
    max_buffered_bytes: Size = 1024 * _MIB
    """All request bodies held at one time."""
    max_peek_bytes: Size = 8 * _MIB
    """The largest body that is read to decide."""
    max_header_bytes: Size = 32 * _KIB
    """A request head."""
    header_timeout: Seconds = 10.0
    """Seconds for a request head to be complete."""
    body_timeout: Seconds = 60.0
    """Seconds without progress in a request body."""
    client_write: Seconds = 60.0
    """Seconds for which a client may take no byte of its answer."""


class Timeouts(Section):
    """How long a server may take, and how long connections live; seconds."""

    connect: Seconds = 2.0
    """To connect to a server."""
    first_byte: Seconds = 600.0
    """Streams: to the first byte of the body."""
    between_chunks: Seconds = 120.0
    """Streams: between two pieces."""
    response: Seconds = 3600.0
    """Not streamed: the whole answer."""
    idle_connection: Seconds = 3.0
    """For which an idle connection to a server is kept; below SGLang's keep-alive of 5 s."""
    client_keep_alive: Seconds = 75.0
    """For which an idle client connection is kept."""
    wait_for_upstream: SecondsOrNone = 10.0
    """For which a request waits while no server is usable; 0: refuse at once."""
    drain: SecondsOrNone = 120.0
    """For requests to end at shutdown; 0: cut at once."""


class HealthChecks(Section):
    """How it is found out whether a server can be trusted with a request."""

    path: ProbePath = "/ready"
    """What is probed; `/v1/models` where the server does not have it."""
    interval: Seconds = 2.0
    """Seconds between two probes."""
    timeout: Seconds = 5.0
    """Seconds for the answer to a probe."""
    fall: Count = 3
    """Failed probes in a row that eject."""
    rise: Count = 2
    """Good probes in a row that bring back."""
    passive_failures: Count = 5
    """Failed requests in a row that eject."""
    stalled: Seconds = 30.0
    """Seconds without a sign of life, neither a byte nor a change in its load, that eject a server
    with work in hand."""
    ejection: Seconds = 5.0
    """Seconds of the first such ejection; it doubles with each in a row, up to 60."""


class Auth(Section):
    """Who may call."""

    api_keys: ApiKeys = {}
    """Client keys by name; empty: open to all."""
    admin_token: Secret = SecretStr("")
    """Needed for every change on the admin listener; empty: none is asked for."""


class Log(Section):
    """What is logged."""

    format: LogFormat = "auto"
    """`auto`: text on a terminal, JSON elsewhere."""
    level: LogLevel = "info"
    """The least level that is written."""


class Config(Section):
    """Everything that can be set. `load` makes one, checked whole."""

    listen: Listen = Listen()
    upstreams: Upstreams = Upstreams()
    policy: Policy = Policy()
    eligibility: Eligibility = Eligibility()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    health: HealthChecks = HealthChecks()
    auth: Auth = Auth()
    log: Log = Log()


class Conflict(NamedTuple):
    """Keys that are right one by one and wrong together; reported at the first."""

    paths: tuple[str, ...]
    message: str


def conflicts(config: Config) -> Iterator[Conflict]:
    """What is wrong across keys."""
    yield from _listeners(config)
    yield from _certificate(config)
    yield from _servers(config)
    yield from _admin_key(config)
    yield from _tolerance(config)
    limits = config.limits
    if limits.max_buffered_bytes < limits.max_body_bytes:
        yield Conflict(
            ("limits.max_buffered_bytes", "limits.max_body_bytes"),
            f"must be at least limits.max_body_bytes ({size_text(limits.max_body_bytes)}), "
            f"is {size_text(limits.max_buffered_bytes)}",
        )


def _listeners(config: Config) -> Iterator[Conflict]:
    listen = config.listen
    if listen.port and _meets(listen.host, listen.port, listen.admin_host, listen.admin_port):
        yield Conflict(
            ("listen.admin_port", "listen.port", "listen.host", "listen.admin_host"),
            f"must not be the address of the endpoint, {listen.host} port {listen.port}",
        )
    if not is_loopback(listen.admin_host) and not config.auth.admin_token:
        yield Conflict(
            ("auth.admin_token", "listen.admin_host"),
            f"must be set, since listen.admin_host ({listen.admin_host}) is not loopback",
        )


def _certificate(config: Config) -> Iterator[Conflict]:
    certificate, key = config.listen.tls_cert, config.listen.tls_key
    paths = ("listen.tls_key", "listen.tls_cert")
    if certificate is None and key is not None:
        yield Conflict(paths[::-1], "must be set, since listen.tls_key is")
    elif certificate is not None and key is None:
        yield Conflict(paths, "must be set, since listen.tls_cert is")
    elif certificate is not None and key is not None and not pairs(certificate, key):
        yield Conflict(
            paths, "must be the private key of listen.tls_cert, in PEM and without a passphrase"
        )


def _admin_key(config: Config) -> Iterator[Conflict]:
    key = config.upstreams.admin_api_key.get_secret_value()
    if key and key in {each.get_secret_value() for each in config.auth.api_keys.values()}:
        yield Conflict(
            ("upstreams.admin_api_key", "auth.api_keys"),
            "must not be the key of a client",
        )


def _tolerance(config: Config) -> Iterator[Conflict]:
    policy = config.policy
    if policy.up_factor_min > policy.up_factor:
        yield Conflict(
            ("policy.up_factor_min", "policy.up_factor"),
            f"must be at most policy.up_factor ({policy.up_factor:g})",
        )
    if policy.up_factor_max < policy.up_factor:
        yield Conflict(
            ("policy.up_factor_max", "policy.up_factor"),
            f"must be at least policy.up_factor ({policy.up_factor:g})",
        )


def _servers(config: Config) -> Iterator[Conflict]:
    listen, spec, base = config.listen, config.upstreams.spec, config.upstreams.base
    if spec.url.port == base.url.port and same_host(spec.url.host, base.url.host):
        yield Conflict(
            ("upstreams.base.url", "upstreams.spec.url"),
            "must not be the server that upstreams.spec.url names",
        )
    for name, upstream in (("spec", spec), ("base", base)):
        path = f"upstreams.{name}"
        if upstream.ca_file is not None and not upstream.url.secure:
            yield Conflict((f"{path}.ca_file", f"{path}.url"), "must go with an https URL")
        for prefix, host, port in (
            ("", listen.host, listen.port),
            ("admin_", listen.admin_host, listen.admin_port),
        ):
            if _reaches(upstream.url, host, port):
                yield Conflict(
                    (f"{path}.url", f"listen.{prefix}host", f"listen.{prefix}port"),
                    f"must not be specswitch's own address, {host} port {port}",
                )


def _meets(one: str, one_port: int, other: str, other_port: int) -> bool:
    """Whether two listeners cannot both be opened."""
    either_is_all = is_wildcard(one) or is_wildcard(other)
    return one_port == other_port and (either_is_all or same_host(one, other))


def _reaches(url: Url, host: str, port: int) -> bool:
    """Whether a request to `url` would come back to our listener at `host` and `port`."""
    own = same_host(url.host, host) or (is_wildcard(host) and is_loopback(url.host))
    return url.port == port and own
