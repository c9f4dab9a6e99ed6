"""What each key may be, alone and beside others: refused by its path, and never with a secret."""

from pathlib import Path

import pytest
import trustme
from pydantic import ValidationError

from proxy.config import Config, Url
from proxy.config.addresses import is_loopback, is_wildcard, same_host
from proxy.errors import ConfigError
from tests.harness.configs import SECRET, config, findings, line

BAD = [
    # whole numbers
    ("listen.port", "-1", "must be at least 0, is -1"),
    ("listen.port", "65536", "must be at most 65535, is 65536"),
    ("listen.port", "true", "must be a whole number, is true"),
    ("listen.port", "80.0", "must be a whole number, is 80.0"),
    ("listen.port", '"80"', 'must be a whole number, is "80"'),
    ("limits.max_in_flight", "0", "must be at least 1, is 0"),
    ("limits.queue_size", "-1", "must be at least 0, is -1"),
    ("limits.max_connections", "[]", "must be a whole number, is a list"),
    ("limits.max_connections", "3000000000", "must be at most 2147483647, is 3000000000"),
    (
        "limits.max_connections",
        f"0x{'f' * 5000}",
        "must be at most 2147483647, is a number of more than 18 digits",
    ),
    ("policy.flap_limit", "1", "must be at least 2, is 1"),
    ("health.fall", "0", "must be at least 1, is 0"),
    ("health.rise", "2030-01-01", "must be a whole number, is a date or time"),
    ("eligibility.short_output_tokens", "-1", "must be at least 0, is -1"),
    ("eligibility.max_spec_prompt_tokens", "1.5", "must be a whole number, is 1.5"),
    # numbers and seconds
    ("policy.crossover", "-0.1", "must be at least 0, is -0.1"),
    ("policy.crossover", "nan", "must be a finite number, is nan"),
    ("policy.crossover", "inf", "must be a finite number, is inf"),
    ("policy.gate_factor", "1.01", "must be at most 1, is 1.01"),
    ("policy.return_dwell", "-1", "must be at least 0, is -1"),
    ("policy.count_window", "0", "must be at least 0.01, is 0"),
    ("policy.flap_window", "0.0", "must be at least 0.01, is 0.0"),
    ("limits.queue_timeout", "-1.0", "must be at least 0, is -1.0"),
    ("limits.queue_timeout", "false", "must be a number, is false"),
    ("timeouts.connect", "0", "must be at least 0.01, is 0"),
    ("timeouts.response", "1e300", "must be at most 31536000, is 1e+300"),
    ("timeouts.drain", '"2m"', 'must be a number, is "2m"'),
    ("health.interval", "-inf", "must be a finite number, is -inf"),
    ("health.interval", "1e-7", "must be at least 0.01, is 1e-07"),
    # sizes
    ("limits.max_body_bytes", "0", "must be at least 1, is 0"),
    ("limits.max_peek_bytes", '"0KiB"', "must be at least 1, is 0"),
    ("limits.max_peek_bytes", "1.5", "must be a whole number, is 1.5"),
    (
        "limits.max_header_bytes",
        '"32KB"',
        'must be a size in B, KiB, MiB or GiB such as "64MiB", is "32KB"',
    ),
    # words
    (
        "policy.control",
        '"on"',
        'must be "auto", "spec", "base" or "observe", is "on"',
    ),
    ("policy.allow_override", "1", "must be true or false, is 1"),
    ("eligibility.min_p", '"spec"', 'must be "base", "prefer" or "any", is "spec"'),
    ("log.format", "{}", 'must be "auto", "text" or "json", is a table'),
    ("log.level", '"LOUD"', 'must be "debug", "info", "warning" or "error", is "LOUD"'),
    (
        "upstreams.spec.max_in_flight",
        '"all"',
        'must be "auto" or a whole number from 0 to 2147483647, is "all"',
    ),
    (
        "upstreams.base.max_in_flight",
        "true",
        'must be "auto" or a whole number from 0 to 2147483647, is true',
    ),
    (
        "upstreams.base.max_in_flight",
        "-1",
        'must be "auto" or a whole number from 0 to 2147483647, is -1',
    ),
    (
        "upstreams.base.max_in_flight",
        "2147483648",
        'must be "auto" or a whole number from 0 to 2147483647, is 2147483648',
    ),
    # hosts
    (
        "listen.host",
        f'"{"a." * 127}"',
        f'must be a host name or an IP address, is "{"a." * 20}..."',
    ),
    ("listen.host", '""', 'must be a host name or an IP address, is ""'),
    ("listen.host", '"a b"', 'must be a host name or an IP address, is "a b"'),
    ("listen.host", '"10.0.0.256"', 'must be a host name or an IP address, is "10.0.0.256"'),
    ("listen.host", '"[127.0.0.1]"', 'must be a host name or an IP address, is "[127.0.0.1]"'),
    ("listen.admin_host", '"fe80::1%lo"', 'must be a host name or an IP address, is "fe80::1%lo"'),
    ("listen.admin_hosts", '"gpu1"', 'must be a list, is "gpu1"'),
    (
        "listen.host",
        f'"{"x" * 64}"',
        f'must be a host name or an IP address, is "{"x" * 40}..."',
    ),
    # a probe
    ("health.path", '"ready"', 'must be a path such as "/ready", is "ready"'),
    ("health.path", '"/a b"', 'must be a path such as "/ready", is "/a b"'),
    (
        "health.path",
        '"/health_generate?x=1"',
        "must not be one at which SGLang generates a token: /health, /health_generate",
    ),
    (
        "health.path",
        '"/health_generate/"',
        "must not be one at which SGLang generates a token: /health, /health_generate",
    ),
    # files and keys
    (
        "upstreams.base.ca_file",
        '"a\\u0000b"',
        "must be a file of PEM certificates that can be read",
    ),
    ("upstreams.spec.ca_file", "1", "must be text, is a number"),
    (
        "upstreams.spec.ca_file",
        '"/nowhere.pem"',
        "must be a file of PEM certificates that can be read",
    ),
    ("upstreams.spec.api_key", "123", "must be text, is a number"),
    (
        "upstreams.spec.api_key",
        '"a b"',
        "must be visible ASCII characters without spaces, at least one",
    ),
    ("auth.admin_token", "true", "must be text, is true"),
    ("auth.api_keys", "[]", "must be a table, is a list"),
    (
        "auth.api_keys",
        '"/nowhere.toml"',
        "must be a table of keys, or a file of them: No such file or directory",
    ),
    ("auth.api_keys", '"a=1,b"', "must be name=key, separated by commas, each name once"),
    ("auth.api_keys", '"a=1,a=2"', "must be name=key, separated by commas, each name once"),
    (
        "auth.api_keys",
        '{ann = "one", bob = "one"}',
        "must not give one key two names, ann and bob",
    ),
]


@pytest.mark.parametrize(("path", "value", "message"), BAD)
def test_bad_values(path: str, value: str, message: str) -> None:
    """Each is refused by its path, with what it must be and what it is."""
    assert findings(line(path, value)) == ((path, message),)


NO_URL = 'must be an http or https URL such as "http://127.0.0.1:30000"'
NO_ADDRESS = "must have a host, and a port from 1 to 65535 if any"
NO_PATH = "must end after the port; paths come with the requests"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", NO_URL),
        ("gpu:30000", NO_URL),
        ("ftp://gpu", NO_URL),
        ("http://", NO_URL),
        (" http://gpu", NO_URL),
        ("http://g\\tpu", NO_URL),
        ("http://:30000", NO_ADDRESS),
        ("http://gpu:", NO_ADDRESS),
        ("http://gpu:0", NO_ADDRESS),
        ("http://gpu:65536", NO_ADDRESS),
        ("http://gpu:http", NO_ADDRESS),
        ("http://[::1", NO_ADDRESS),
        ("http://gpu/v1", NO_PATH),
        ("http://gpu?", NO_PATH),
        ("http://gpu#x", NO_PATH),
        (
            f"http://me:{SECRET}@gpu",
            "must not carry user information; a key belongs in api_key",
        ),
        ("http://g_$pu", 'must be a host name or an IP address, is "g_$pu"'),
        ("http://[v1.x]", 'must be a host name or an IP address, is "[v1.x]"'),
        ("http://127.1", 'must be a host name or an IP address, is "127.1"'),
    ],
)
def test_bad_urls(url: str, message: str) -> None:
    """A URL says where a server is and nothing else."""
    path = "upstreams.spec.url"
    assert findings(line(path, f'"{url}"')) == ((path, message),)


def test_a_url_is_text() -> None:
    """Another type is named and not repeated."""
    assert findings(line("upstreams.spec.url", "5")) == (
        ("upstreams.spec.url", "must be text, is a number"),
    )


@pytest.mark.parametrize(
    ("text", "url", "spelling"),
    [
        ("http://localhost:1", Url(False, "localhost", 1), "http://localhost:1"),
        ("HTTP://GPU.Example./", Url(False, "gpu.example.", 80), "http://gpu.example.:80"),
        ("HTTPS://engine_1", Url(True, "engine_1", 443), "https://engine_1:443"),
        ("http://[0:0::1]:5", Url(False, "::1", 5), "http://[::1]:5"),
        ("http://10.0.0.2:5", Url(False, "10.0.0.2", 5), "http://10.0.0.2:5"),
    ],
)
def test_good_urls(text: str, url: Url, spelling: str) -> None:
    """Names, IPv4 and IPv6 work, and come out in one spelling."""
    made = config(overrides={"upstreams.spec.url": text}).upstreams.spec.url
    assert made == url
    assert str(made) == spelling


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("listen.host", "[::1]", "::1"),
        ("listen.port", 0, 0),
        ("upstreams.spec.max_in_flight", 0, 0),
        ("upstreams.base.max_in_flight", "auto", "auto"),
        ("policy.crossover", 3, 3.0),
        ("policy.return_dwell", 0, 0.0),
        ("policy.flap_hold", 0, 0.0),
        ("limits.queue_size", 0, 0),
        ("limits.queue_timeout", 0, 0.0),
        ("limits.max_header_bytes", 1, 1),
        ("limits.max_header_bytes", "7 B", 7),
        ("limits.max_buffered_bytes", "2GiB", 2 * 1024**3),
        ("timeouts.wait_for_upstream", 0, 0.0),
        ("timeouts.drain", 0, 0.0),
        ("eligibility.lora", "any", "any"),
        ("health.path", "/healthy?full=1", "/healthy?full=1"),
    ],
)
def test_values_at_the_edge(path: str, value: object, expected: object) -> None:
    """What has a meaning is accepted, zeros included."""
    made: object = config(overrides={path: value})
    for part in path.split("."):
        made = getattr(made, part)
    assert made == expected


OWN = "must not be specswitch's own address, "


@pytest.mark.parametrize(
    ("overrides", "path", "message"),
    [
        (
            {"upstreams.spec.url": "http://localhost:30000"},
            "upstreams.base.url",
            "must not be the server that upstreams.spec.url names",
        ),
        (
            {"listen.host": "127.0.0.1", "listen.port": 8001},
            "listen.admin_port",
            "must not be the address of the endpoint, 127.0.0.1 port 8001",
        ),
        (
            {"listen.host": "::", "listen.admin_port": 8000},
            "listen.admin_port",
            "must not be the address of the endpoint, :: port 8000",
        ),
        (
            {"listen.admin_host": "0.0.0.0"},
            "auth.admin_token",
            "must be set, since listen.admin_host (0.0.0.0) is not loopback",
        ),
        (
            {"upstreams.base.url": "http://localhost:8000"},
            "upstreams.base.url",
            f"{OWN}0.0.0.0 port 8000",
        ),
        (
            {"upstreams.spec.url": "http://127.0.0.1:8001"},
            "upstreams.spec.url",
            f"{OWN}127.0.0.1 port 8001",
        ),
        (
            {"limits.max_buffered_bytes": 5, "limits.max_body_bytes": 6},
            "limits.max_buffered_bytes",
            "must be at least limits.max_body_bytes (6B), is 5B",
        ),
    ],
)
def test_keys_that_do_not_go_together(
    overrides: dict[str, object], path: str, message: str
) -> None:
    """Each is right by itself and wrong beside another."""
    assert findings(overrides=overrides) == ((path, message),)


@pytest.mark.parametrize(
    "overrides",
    [
        {"listen.port": 0, "listen.admin_port": 0},
        {"listen.host": "127.0.0.1", "listen.admin_host": "127.0.0.2", "listen.admin_port": 8000},
        {"listen.admin_host": "10.0.0.1", "auth.admin_token": SECRET},
        {"listen.admin_host": "localhost"},
        {"upstreams.spec.url": "http://gpu2:30000", "upstreams.base.url": "http://gpu1:30000"},
        {"upstreams.spec.url": "http://gpu2:8000"},
        {"listen.host": "10.0.0.1", "upstreams.spec.url": "http://127.0.0.1:8000"},
    ],
)
def test_keys_that_go_together(overrides: dict[str, object]) -> None:
    """The checks across keys refuse nothing that works."""
    config(overrides=overrides)


def test_hosts_are_compared_by_what_can_be_told() -> None:
    """Only `localhost` is known to be another spelling; wildcards are addresses, not names."""
    assert same_host("localhost", "::1")
    assert same_host("gpu", "gpu")
    assert not same_host("127.0.0.1", "::1")
    assert not same_host("localhost", "10.0.0.1")
    assert is_loopback("127.8.8.8")
    assert not is_loopback("gpu")
    assert is_wildcard("::")
    assert not is_wildcard("gpu")


def test_certificates(tmp_path: Path) -> None:
    """A file of certificates is read at once, and belongs to an https URL."""
    good, bad = tmp_path / "ca.pem", tmp_path / "bad.pem"
    trustme.CA().cert_pem.write_to_path(str(good))
    bad.write_text("not PEM")
    path = "upstreams.spec.ca_file"
    https: dict[str, object] = {"upstreams.spec.url": "https://gpu"}
    assert config(overrides={**https, path: str(good)}).upstreams.spec.ca_file == good
    assert config(overrides={path: ""}).upstreams.spec.ca_file is None
    assert findings(overrides={path: str(good)}) == ((path, "must go with an https URL"),)
    assert findings(overrides={**https, path: str(bad)}) == (
        (path, "must be a file of PEM certificates that can be read"),
    )


def test_secrets_are_hidden_where_they_are_right() -> None:
    """Neither `str` nor `repr` of a configuration shows a key."""
    made = config(
        overrides={
            "upstreams.spec.api_key": SECRET,
            "auth.admin_token": SECRET,
            "auth.api_keys": {"ann": f"{SECRET}-too"},
        }
    )
    assert made.auth.admin_token.get_secret_value() == SECRET
    assert SECRET not in f"{made!r} {made} {made.auth.api_keys} {made.model_dump()}"
    assert SECRET not in made.model_dump_json()


@pytest.mark.parametrize(
    "overrides",
    [
        {"upstreams.spec.api_key": f"{SECRET}\n"},
        {"upstreams.spec.api_key": [SECRET]},
        {"upstreams.spec.url": f"http://me:{SECRET}@gpu:1"},
        {"upstreams.spec.url": f"http://me:{SECRET}@gpu:99999"},
        {"upstreams.spec.url": f"me:{SECRET}@gpu"},
        {"upstreams.spec.ca_file": SECRET},
        {"auth.admin_token": {"token": SECRET}},
        {"auth.api_keys": SECRET},
        {"auth.api_keys": f"ann={SECRET},{SECRET}"},
        {"auth.api_keys": {"ann": SECRET, "bob": SECRET}},
        {"auth.api_keys": {"ann": [SECRET]}},
        {"auth.api_keys": {"ann": f"{SECRET} "}},
    ],
)
def test_secrets_are_hidden_where_they_are_wrong(overrides: dict[str, object]) -> None:
    """No finding repeats a secret, nor does what stands behind the error."""
    with pytest.raises(ConfigError) as raised:
        config(overrides=overrides)
    error: BaseException | None = raised.value
    while error is not None:
        assert SECRET not in f"{error!r} {error}"
        error = error.__context__


def test_what_pydantic_says_hides_them_too() -> None:
    """Its own error, which no reader should see, has no value in it."""
    with pytest.raises(ValidationError) as raised:
        Config.model_validate({"auth": {"admin_token": [SECRET]}})
    assert SECRET not in str(raised.value)
