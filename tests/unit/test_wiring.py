"""Every key of the configuration reaches the value that it is for."""

from collections.abc import Callable

import pytest

from proxy import wiring
from proxy.config import Config, load
from proxy.core.eligibility import Rule, Verdict
from proxy.core.keys import presented
from proxy.core.modes import Thresholds
from proxy.core.words import Topology, UpstreamName

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
BOUNDS = {Rule.SHORT_OUTPUT_TOKENS, Rule.MAX_SPEC_PROMPT_TOKENS}


def config(**keys: object) -> Config:
    """A configuration; `keys` are its paths with `__` for the dot."""
    overrides = {name.replace("__", "."): value for name, value in keys.items()}
    return load(file=None, env={}, overrides=overrides)


def _thresholds(made: Config) -> Thresholds:
    """What the controller is set to by it."""
    return wiring.settings_of(made, None).thresholds


PATHS: list[tuple[str, object, Callable[[Config], object]]] = [
    ("policy__crossover", 3.1, lambda c: _thresholds(c).crossover),
    ("policy__topology", Topology.SEPARATE, lambda c: _thresholds(c).topology),
    ("policy__up_factor", 1.7, lambda c: _thresholds(c).tolerance.first),
    ("policy__up_factor_min", 0.7, lambda c: _thresholds(c).tolerance.least),
    ("policy__up_factor_max", 2.7, lambda c: _thresholds(c).tolerance.most),
    ("policy__rate_up", 1.8, lambda c: _thresholds(c).rate_up),
    ("policy__rate_down", 0.7, lambda c: _thresholds(c).rate_down),
    ("policy__fast_window", 4.0, lambda c: _thresholds(c).fast_window),
    ("policy__slow_window", 40.0, lambda c: _thresholds(c).slow_window),
    ("policy__min_acceptance_length", 1.9, lambda c: _thresholds(c).least_acceptance),
    ("policy__gate_factor", 0.5, lambda c: _thresholds(c).gate_factor),
    ("policy__count_window", 7.0, lambda c: _thresholds(c).count_window),
    ("policy__return_dwell", 8.0, lambda c: _thresholds(c).return_dwell),
    ("policy__flap_limit", 9, lambda c: _thresholds(c).flap_limit),
    ("policy__flap_window", 11.0, lambda c: _thresholds(c).flap_window),
    ("policy__flap_hold", 12.0, lambda c: _thresholds(c).flap_hold),
    ("health__fall", 13, lambda c: wiring.settings_of(c, None).health.fall),
    ("health__rise", 14, lambda c: wiring.settings_of(c, None).health.rise),
    ("health__passive_failures", 15, lambda c: wiring.settings_of(c, None).health.passive_failures),
    ("health__ejection", 16.0, lambda c: wiring.settings_of(c, None).health.ejection),
    ("upstreams__spec__max_in_flight", 17, lambda c: wiring.settings_of(c, None).spec_cap),
    ("upstreams__base__max_in_flight", 18, lambda c: wiring.settings_of(c, None).base_cap),
    ("limits__max_in_flight", 19, lambda c: wiring.settings_of(c, None).max_in_flight),
    ("limits__queue_size", 20, lambda c: wiring.settings_of(c, None).queue_size),
    ("limits__queue_timeout", 21.0, lambda c: wiring.settings_of(c, None).queue_timeout),
    ("timeouts__wait_for_upstream", 22.0, lambda c: wiring.settings_of(c, None).wait_for_upstream),
    (
        "eligibility__short_output_tokens",
        23,
        lambda c: wiring.settings_of(c, None).rules.short_output_tokens,
    ),
    (
        "eligibility__max_spec_prompt_tokens",
        24,
        lambda c: wiring.settings_of(c, None).rules.max_spec_prompt_tokens,
    ),
    ("limits__max_connections", 25, lambda c: wiring.limits_of(c).max_connections),
    ("limits__max_header_bytes", 2600, lambda c: wiring.limits_of(c).max_header_bytes),
    ("limits__max_body_bytes", 27, lambda c: wiring.limits_of(c).max_body_bytes),
    ("limits__max_buffered_bytes", 2**31, lambda c: wiring.limits_of(c).max_buffered_bytes),
    ("limits__max_peek_bytes", 29, lambda c: wiring.limits_of(c).max_peek_bytes),
    ("limits__header_timeout", 30.0, lambda c: wiring.timeouts_of(c).header),
    ("limits__body_timeout", 31.0, lambda c: wiring.timeouts_of(c).body),
    ("limits__client_write", 32.0, lambda c: wiring.timeouts_of(c).client_write),
    ("timeouts__client_keep_alive", 33.0, lambda c: wiring.timeouts_of(c).client_keep_alive),
    ("timeouts__connect", 34.0, lambda c: wiring.timeouts_of(c).connect),
    ("timeouts__first_byte", 35.0, lambda c: wiring.timeouts_of(c).first_byte),
    ("timeouts__between_chunks", 36.0, lambda c: wiring.timeouts_of(c).between_chunks),
    ("timeouts__response", 37.0, lambda c: wiring.timeouts_of(c).response),
    ("timeouts__idle_connection", 38.0, lambda c: wiring.timeouts_of(c).idle_connection),
    ("health__path", "/v1/models", lambda c: wiring.probes_of(c).path),
    ("health__interval", 39.0, lambda c: wiring.probes_of(c).interval),
    ("health__timeout", 40.0, lambda c: wiring.probes_of(c).timeout),
    ("upstreams__spec__api_key", "k1", lambda c: wiring.key_of(wiring.upstream_of(c, SPEC))),
    ("upstreams__base__api_key", "k2", lambda c: wiring.key_of(wiring.upstream_of(c, BASE))),
    ("listen__admin_hosts", ("a", "b"), lambda c: wiring.known_hosts_of(c)[1:]),
    ("listen__admin_host", "localhost", lambda c: wiring.known_hosts_of(c)[0]),
]


@pytest.mark.parametrize(("path", "value", "reached"), PATHS, ids=[path for path, _, _ in PATHS])
def test_a_key_reaches_its_value(
    path: str, value: object, reached: Callable[[Config], object]
) -> None:
    """What is configured arrives, and is not the default that would arrive anyway."""
    assert reached(config(**{path: value})) == value
    assert reached(config()) != value


@pytest.mark.parametrize("rule", sorted(set(Rule) - BOUNDS))
@pytest.mark.parametrize("verdict", Verdict)
def test_a_verdict_reaches_its_rule(rule: Rule, verdict: Verdict) -> None:
    """A rule is named as its key is."""
    made = wiring.settings_of(config(**{f"eligibility__{rule}": str(verdict)}), None)
    assert made.rules.verdicts[rule] is verdict


def test_no_crossover_is_an_unknown_one() -> None:
    """N* of 0 says that nobody has measured it."""
    assert wiring.settings_of(config(policy__crossover=0.0), None).thresholds.crossover is None


def test_an_automatic_cap_is_left_to_the_server() -> None:
    """`auto` is unknown until the server says; spec has it by default, base has no cap."""
    made = wiring.settings_of(config(), None)
    assert made.spec_cap is None
    assert made.base_cap == 0


def test_client_keys_are_known_by_name() -> None:
    """A key that is configured opens the door under its name, another does not."""
    keyring = wiring.keyring_of(config(auth__api_keys={"team": "sk-one"}))
    assert keyring.name_of(presented([(b"authorization", b"Bearer sk-one")])) == "team"
    assert keyring.name_of(b"sk-two") is None
    assert not wiring.keyring_of(config())


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://127.0.0.1:30001", b"host: 127.0.0.1:30001"),
        ("https://engine.internal", b"host: engine.internal:443"),
        ("http://[::1]:30001", b"host: [::1]:30001"),
    ],
)
def test_requests_name_the_server_they_go_to(url: str, host: bytes) -> None:
    """The Host line is the server's, and without a key of its own the client's is passed on."""
    section = wiring.upstream_of(config(upstreams__spec__url=url), SPEC)
    assert wiring.lines_of(section) == (host,)


def test_requests_carry_the_servers_own_key() -> None:
    """A key of the server is sent with every request."""
    section = wiring.upstream_of(config(upstreams__spec__api_key="sk-engine"), SPEC)
    assert wiring.lines_of(section)[1:] == (b"authorization: Bearer sk-engine",)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("localhost", "http://localhost:8000"),
    ],
)
def test_the_address_told_is_one_that_answers(host: str, url: str) -> None:
    """A wildcard is no address to connect to: its family's loopback is told instead."""
    assert wiring.address(host, 8000) == url
