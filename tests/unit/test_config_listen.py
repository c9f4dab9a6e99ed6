"""What the listener's keys for HTTPS and for web pages may be."""

import pytest

from proxy import wiring
from tests.harness.configs import config, findings, line
from tests.harness.tls import Identity

ORIGIN = 'must be an origin such as "https://chat.example": scheme, host, and port if any'
ADDRESS = "must have a host, and a port from 1 to 65535 if any"


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("https://chat.example", "https://chat.example"),
        ("HTTPS://Chat.Example:443", "https://chat.example"),
        ("http://localhost:80", "http://localhost"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("https://a:80", "https://a:80"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("http://[0:0:0:0:0:0:0:1]", "http://[::1]"),
        ("http://192.168.0.7:8080", "http://192.168.0.7:8080"),
        ("capacitor://localhost", "capacitor://localhost"),
        ("*", "*"),
    ],
)
def test_an_origin(written: str, taken: str) -> None:
    """It is kept as a browser writes it, since that is what it is compared with."""
    made = config(line("listen.cors_origins", f'["{written}"]'))
    assert made.listen.cors_origins == (taken,)
    assert wiring.cors_of(made).origins == {taken.encode()}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", ORIGIN),
        ("chat.example", ORIGIN),
        ("https://chat.example/", ORIGIN),
        ("https://chat.example/app", ORIGIN),
        ("https://chat.example?a", ORIGIN),
        ("https://user:secret@chat.example", ORIGIN),
        ("https://", ORIGIN),
        ("https://*.example", None),
        ("null", ORIGIN),
        ("https://chat example", ORIGIN),
        ("https://chat.example:", ADDRESS),
        ("https://chat.example:0", ADDRESS),
        ("https://chat.example:99999", ADDRESS),
        ("https://:443", ADDRESS),
        ("https://[::1", ADDRESS),
        ("https://127.1", None),
    ],
)
def test_no_origin(written: str, message: str | None) -> None:
    """Anything else is a finding at its place in the list, without the user information in it."""
    ((path, said),) = findings(line("listen.cors_origins", f'["https://a", "{written}"]'))
    assert path == "listen.cors_origins[1]"
    assert message is None or said == message
    assert "secret" not in said


def test_any_and_some_is_a_contradiction() -> None:
    """A list that allows all and names some is not what somebody meant."""
    assert findings(line("listen.cors_origins", '["*", "https://a"]')) == (
        ("listen.cors_origins", 'must be ["*"], which is any origin, or a list without "*"'),
    )


def test_origins_from_the_environment() -> None:
    """As a list with commas."""
    env = {"SPECSWITCH_LISTEN_CORS_ORIGINS": "https://a, https://b:444"}
    assert config(env=env).listen.cors_origins == ("https://a", "https://b:444")
    assert config(env={"SPECSWITCH_LISTEN_CORS_ORIGINS": ""}).listen.cors_origins == ()


@pytest.mark.parametrize(("key", "other"), [("tls_cert", "tls_key"), ("tls_key", "tls_cert")])
def test_both_or_neither(tmp_path_factory: pytest.TempPathFactory, key: str, other: str) -> None:
    """One of the two files alone is a finding at the one that is missing."""
    made = Identity(tmp_path_factory.mktemp("tls"))
    file = made.cert if key == "tls_cert" else made.key
    assert findings(line(f"listen.{key}", f'"{file}"')) == (
        (f"listen.{other}", f"must be set, since listen.{key} is"),
    )


def test_a_file_is_text() -> None:
    """And empty text is none."""
    assert findings(line("listen.tls_key", "1")) == (
        ("listen.tls_key", "must be text, is a number"),
    )
    assert config(line("listen.tls_key", '""')).listen.tls_key is None


def test_where_it_can_be_reached() -> None:
    """By https, where it takes that; IPv6 in brackets, and a wildcard as its loopback."""
    assert wiring.address("0.0.0.0", 8000, secure=True) == "https://127.0.0.1:8000"
    assert wiring.address("::", 8000, secure=True) == "https://[::1]:8000"
    assert wiring.address("::1", 8000) == "http://[::1]:8000"
