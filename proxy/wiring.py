"""A Config as the values that each part takes: which key goes where, and nothing else.

Pure functions; `app` calls them. Only the roots know the configuration, so that every other part
can be built in a test from a few values.
"""

from collections.abc import Iterable
from functools import reduce

from proxy.calibrated import curves_of, made_for, thresholds_of
from proxy.calibration import Calibration
from proxy.config import Config, Upstream, describe
from proxy.config.addresses import Url
from proxy.control.desk import Patience
from proxy.control.prober import ProbeRules
from proxy.core.cors import Cors
from proxy.core.eligibility import Rule, Rules, Verdict
from proxy.core.health import HealthRules
from proxy.core.keys import Keyring
from proxy.core.places import Settings
from proxy.core.words import UpstreamName
from proxy.data.settings import FrontSettings, Limits, Timeouts
from proxy.errors import ConfigError

_BOUNDS = frozenset({Rule.SHORT_OUTPUT_TOKENS, Rule.MAX_SPEC_PROMPT_TOKENS})
"""Rules that are numbers; all others are verdicts."""


def upstream_of(config: Config, name: UpstreamName) -> Upstream:
    """The section of the upstream `name`."""
    return config.upstreams.spec if name is UpstreamName.SPEC else config.upstreams.base


def settings_of(config: Config, calibration: Calibration | None) -> Settings:
    """What the pair is set to."""
    health, limits = config.health, config.limits
    return Settings(
        thresholds=thresholds_of(config, calibration),
        made_for=made_for(calibration),
        curves=curves_of(calibration),
        expected_tokens=None if calibration is None else calibration.workload.output_tokens,
        health=HealthRules(
            fall=health.fall,
            rise=health.rise,
            passive_failures=health.passive_failures,
            stalled=health.stalled,
            ejection=health.ejection,
        ),
        rules=_rules_of(config),
        spec_cap=_cap_of(config.upstreams.spec),
        base_cap=_cap_of(config.upstreams.base),
        max_in_flight=limits.max_in_flight,
        queue_size=limits.queue_size,
        queue_timeout=limits.queue_timeout,
        wait_for_upstream=config.timeouts.wait_for_upstream,
    )


def _cap_of(upstream: Upstream) -> int | None:
    """None: what the server reports."""
    return None if upstream.max_in_flight == "auto" else upstream.max_in_flight


def _rules_of(config: Config) -> Rules:
    section = config.eligibility
    # A rule is named as its key is; a test holds them to each other.
    verdicts = {rule: Verdict(getattr(section, rule)) for rule in Rule if rule not in _BOUNDS}
    return Rules(verdicts, section.short_output_tokens, section.max_spec_prompt_tokens)


def limits_of(config: Config) -> Limits:
    """Bytes and counts of the data plane."""
    limits = config.limits
    return Limits(
        max_connections=limits.max_connections,
        max_header_bytes=limits.max_header_bytes,
        max_body_bytes=limits.max_body_bytes,
        max_buffered_bytes=limits.max_buffered_bytes,
        max_peek_bytes=limits.max_peek_bytes,
    )


def timeouts_of(config: Config) -> Timeouts:
    """Seconds of the data plane."""
    limits, timeouts = config.limits, config.timeouts
    return Timeouts(
        header=limits.header_timeout,
        body=limits.body_timeout,
        client_write=limits.client_write,
        client_keep_alive=timeouts.client_keep_alive,
        connect=timeouts.connect,
        first_byte=timeouts.first_byte,
        between_chunks=timeouts.between_chunks,
        response=timeouts.response,
        idle_connection=timeouts.idle_connection,
    )


def patience_of(config: Config) -> Patience:
    """Seconds that a server may take for what the pair is asked, or told to do, as one."""
    timeouts = config.timeouts
    return Patience(
        connect=timeouts.connect, page=config.health.timeout, administration=timeouts.response
    )


def cors_of(config: Config) -> Cors:
    """Whose web pages may read answers."""
    return Cors(frozenset(origin.encode() for origin in config.listen.cors_origins))


def front_of(config: Config) -> FrontSettings:
    """What the data plane is set to."""
    return FrontSettings(
        limits=limits_of(config),
        timeouts=timeouts_of(config),
        keyring=keyring_of(config),
        admin_keyring=admin_keyring_of(config),
        serves_metrics=config.listen.metrics,
        allow_override=config.policy.allow_override,
    )


def keyring_of(config: Config) -> Keyring:
    """The clients' keys."""
    return Keyring({name: key.get_secret_value() for name, key in config.auth.api_keys.items()})


def admin_keyring_of(config: Config) -> Keyring:
    """The key for SGLang's administration; empty where none is configured."""
    key = config.upstreams.admin_api_key.get_secret_value()
    return Keyring({"admin": key} if key else {})


def key_of(upstream: Upstream) -> str | None:
    """Our own key for the server, None where the client's is passed on."""
    return upstream.api_key.get_secret_value() or None


def lines_of(upstream: Upstream) -> tuple[bytes, ...]:
    """The header lines that every request to the server gets."""
    lines = [f"host: {str(upstream.url).partition('://')[2]}"]
    if key := key_of(upstream):
        lines.append(f"authorization: Bearer {key}")
    return tuple(line.encode() for line in lines)


def probes_of(config: Config) -> ProbeRules:
    """How the servers are probed."""
    health = config.health
    return ProbeRules(path=health.path, interval=health.interval, timeout=health.timeout)


def changes(old: Config, new: Config) -> tuple[str, ...]:
    """The keys whose values differ, as dotted paths in the order of the sections."""
    paths = (setting.path for setting in describe())
    return tuple(path for path in paths if _value(old, path) != _value(new, path))


def _value(config: Config, path: str) -> object:
    return reduce(getattr, path.split("."), config)


def refuse_listeners(changed: Iterable[str]) -> None:
    """Raise ConfigError if a listener is among what has `changed`: those are opened once."""
    findings = [
        (path, "cannot be changed by a reload; restart for it")
        for path in changed
        if path.startswith("listen.")
    ]
    if findings:
        raise ConfigError(findings)


def refuse_opening(old: Config, new: Config) -> None:
    """Raise ConfigError if keys would be asked for no more.

    A file that an editor has emptied and not yet written looks like that; who means it restarts.
    """
    findings = [
        (path, "would be empty, so that no key is asked for any more; restart for it")
        for path in ("auth.api_keys", "auth.admin_token")
        if _value(old, path) and not _value(new, path)
    ]
    if findings:
        raise ConfigError(findings)


def known_hosts_of(config: Config) -> tuple[str, ...]:
    """Names under which the admin listener may be called."""
    return (config.listen.admin_host, *config.listen.admin_hosts)


def address(host: str, port: int, *, secure: bool = False) -> str:
    """Where a listener on `host` can be reached from this machine."""
    # Each wildcard is its own family's: a listener on `::` takes no IPv4 connection.
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - told apart only
    return str(Url(secure, reachable, port))
