"""Configuration: four sources make one frozen Config, or one list of everything that is wrong."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from proxy.config import Config, describe, load
from proxy.config.findings import wording
from proxy.config.forms import Kind
from proxy.config.settings import SETTINGS, VARIABLES
from proxy.core.eligibility import Rule, Verdict
from proxy.core.words import Control
from proxy.errors import ConfigError
from tests.harness.configs import SECRET, config, findings, line, outcome

BAD_NAME = "must have a name of 1 to 64 letters, digits, dots, dashes and underscores"
BAD_KEY = "must be visible ASCII characters without spaces, at least one"
BAD_SIZE = 'must be a size in B, KiB, MiB or GiB such as "64MiB", is '
TOO_MUCH = "cannot be read: a name, a number or a nesting is too much for TOML"


def test_no_source_gives_the_defaults() -> None:
    """Nothing needs to be set, and `load` without a file reads none."""
    made = load(file=None, env={"PATH": "/bin"}, overrides={})
    assert made == Config()
    assert (made.listen.host, made.listen.port) == ("0.0.0.0", 8000)
    assert str(made.upstreams.spec.url) == "http://127.0.0.1:30001"
    assert (made.upstreams.spec.max_in_flight, made.upstreams.base.max_in_flight) == ("auto", 0)
    assert made.limits.max_body_bytes == 64 * 1024 * 1024
    assert made.policy.control is Control.AUTO
    assert dict(made.auth.api_keys) == {}


def test_the_tree_is_frozen() -> None:
    """What was checked cannot be changed afterwards."""
    with pytest.raises(ValidationError, match="frozen"):
        config().listen.port = 1


def test_precedence() -> None:
    """Flags win over the environment, that over the file, that over the defaults."""
    text = "[limits]\nqueue_size = 1\nmax_in_flight = 1\nmax_connections = 1\n"
    env = {"SPECSWITCH_LIMITS_QUEUE_SIZE": "2", "SPECSWITCH_LIMITS_MAX_IN_FLIGHT": "2"}
    limits = config(text, env, {"limits.queue_size": 3}).limits
    assert (limits.queue_size, limits.max_in_flight, limits.max_connections) == (3, 2, 1)
    assert limits.queue_timeout == 30.0


def test_the_sources_are_left_as_they_were() -> None:
    """Putting values together does not write into the table that was read."""
    table: dict[str, object] = {"limits": {"queue_size": 1, "drain": 2}}
    for env in ({}, {"SPECSWITCH_LIMITS_QUEUE_SIZE": "2"}):
        assert outcome(table, env, {}) != ()
    assert table == {"limits": {"queue_size": 1, "drain": 2}}


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("limits = 5", "limits", "must be a table, is a number"),
        (f'auth = "{SECRET}"', "auth", "must be a table, is text"),
        ("[limits]\nqueue_sise = 1", "limits.queue_sise", "limits.queue_size"),
        ("[limits]\ndrain = 1", "limits.drain", "timeouts.drain"),
        ("[limit]\nqueue_size = 1", "limit", "limits"),
        ("[upstreams.draft]\nurl = 1", "upstreams.draft", None),
        ("[upstreams.bass]\nurl = 1", "upstreams.bass", "upstreams.base"),
        ("control = 1", "control", "policy.control"),
        ('"a b\\n" = 1', '"a b\\n"', None),
        ('"é" = 1', '"\\u00e9"', None),
        ('"[key]" = 1', '"[key]"', None),
        ('[limits]\n"" = 1', 'limits.""', None),
        ('[auth]\napi_keys = {"a b" = "k"}', 'auth.api_keys."a b"', BAD_NAME),
        ('[auth]\napi_keys = {ann = ""}', "auth.api_keys.ann", BAD_KEY),
        ("[auth]\napi_keys = {ann = 5}", "auth.api_keys.ann", "must be text, is a number"),
        ('[listen]\nadmin_hosts = ["a", 5]', "listen.admin_hosts[1]", "must be text, is 5"),
        (
            '[listen]\nadmin_hosts = ["a", "-"]',
            "listen.admin_hosts[1]",
            'must be a host name or an IP address, is "-"',
        ),
    ],
)
def test_what_is_out_of_place(text: str, path: str, message: str | None) -> None:
    """Unknown keys come with a suggestion, entries of tables and lists by their own path."""
    if message is None:
        message = "unknown key"
    elif not message.startswith("must"):
        message = f"unknown key; did you mean {message}?"
    assert findings(text) == ((path, message),)


def test_all_findings_at_once_and_in_order() -> None:
    """One run says everything: by section and key, then what no section knows."""
    text = """
        [log]
        level = "loud"
        [auth]
        api_keys = {"b b" = "", ann = "one", bob = "one"}
        [limits]
        nonsense = 1
        queue_size = -1
        max_buffered_bytes = "1MiB"
        [listen]
        admin_hosts = [1, "?"]
        admin_port = 8000
        admin_host = "10.0.0.1"
    """
    env = {"SPECSWITCH_POLICY_CROSSOVER": "-1", "SPECSWITCH_NONSENSE": "1"}
    assert findings(text, env, {"nonsense": 1}) == (
        ("listen.admin_port", "must not be the address of the endpoint, 0.0.0.0 port 8000"),
        ("listen.admin_hosts[0]", "must be text, is 1"),
        ("listen.admin_hosts[1]", 'must be a host name or an IP address, is "?"'),
        ("SPECSWITCH_POLICY_CROSSOVER", "must be at least 0, is -1.0"),
        ("limits.queue_size", "must be at least 0, is -1"),
        (
            "limits.max_buffered_bytes",
            "must be at least limits.max_body_bytes (64MiB), is 1MiB",
        ),
        ("limits.nonsense", "unknown key"),
        (
            'auth.api_keys."b b"',
            BAD_NAME,
        ),
        (
            'auth.api_keys."b b"',
            BAD_KEY,
        ),
        ("auth.api_keys", "must not give one key two names, ann and bob"),
        ("auth.admin_token", "must be set, since listen.admin_host (10.0.0.1) is not loopback"),
        ("log.level", 'must be "debug", "info", "warning" or "error", is "loud"'),
        ("SPECSWITCH_NONSENSE", "unknown variable"),
        ("nonsense", "unknown key"),
    )


def test_a_wrong_value_is_not_judged_twice() -> None:
    """No check across keys speaks about a default that only stands in for a wrong value."""
    text = '[listen]\nport = "x"\nadmin_port = 8000\n[auth]\nadmin_token = " "\n'
    text += '[limits]\nmax_body_bytes = 0\nmax_buffered_bytes = "1MiB"\n'
    paths = [path for path, _ in findings(text, overrides={"listen.admin_host": "0.0.0.0"})]
    assert paths == ["listen.port", "limits.max_body_bytes", "auth.admin_token"]


def test_keys_from_a_table_from_pairs_and_from_a_file(tmp_path: Path) -> None:
    """The three ways to give client keys come to the same; an empty text is none."""
    file = tmp_path / "keys.toml"
    file.write_text('ann = "one"\nbob = "two"\n', encoding="utf-8-sig")
    variable = "SPECSWITCH_AUTH_API_KEYS"
    for made in (
        config('[auth.api_keys]\nann = "one"\nbob = "two"'),
        config(env={variable: "ann=one, bob=two"}),
        config(env={variable: str(file)}),
    ):
        keys = made.auth.api_keys
        assert {name: key.get_secret_value() for name, key in keys.items()} == {
            "ann": "one",
            "bob": "two",
        }
    assert not config(env={variable: ""}).auth.api_keys


def test_a_file_of_keys_that_is_none(tmp_path: Path) -> None:
    """Its syntax and each of its entries are checked; what else is in [auth] is kept."""
    file = tmp_path / "keys.toml"
    file.write_text(SECRET)
    given_by = {"auth.api_keys": str(file)}
    assert findings(overrides=given_by) == (
        (
            "auth.api_keys",
            'must be a table of keys, or a file of them: its lines are not name = "key"',
        ),
    )
    file.write_text(f'ann = 5\nbob = ""\n[carl]\nkey = "{SECRET}"\n')
    others = {"auth.admin_token": SECRET, "listen.admin_host": "0.0.0.0"}
    assert findings(overrides={**given_by, **others}) == (
        ("auth.api_keys.ann", "must be text, is a number"),
        ("auth.api_keys.bob", BAD_KEY),
        ("auth.api_keys.carl", "must be text, is a table"),
    )


@pytest.mark.parametrize(
    ("variable", "text", "path", "expected"),
    [
        ("LISTEN_PORT", " 80 ", "listen.port", 80),
        ("LISTEN_ADMIN_HOSTS", "GPU1, [::1]", "listen.admin_hosts", ("gpu1", "::1")),
        ("LISTEN_ADMIN_HOSTS", "", "listen.admin_hosts", ()),
        ("POLICY_ALLOW_OVERRIDE", "True", "policy.allow_override", True),
        ("POLICY_ALLOW_OVERRIDE", "0", "policy.allow_override", False),
        ("POLICY_CONTROL", "observe", "policy.control", Control.OBSERVE),
        ("POLICY_CROSSOVER", "3.1", "policy.crossover", 3.1),
        ("LIMITS_MAX_BODY_BYTES", "1KiB", "limits.max_body_bytes", 1024),
        ("LIMITS_MAX_BODY_BYTES", "1024", "limits.max_body_bytes", 1024),
        ("UPSTREAMS_SPEC_MAX_IN_FLIGHT", "auto", "upstreams.spec.max_in_flight", "auto"),
        ("UPSTREAMS_BASE_MAX_IN_FLIGHT", "48", "upstreams.base.max_in_flight", 48),
    ],
)
def test_environment(variable: str, text: str, path: str, expected: object) -> None:
    """Text of the environment is read by what its key is."""
    made: object = config(env={f"SPECSWITCH_{variable}": text})
    for part in path.split("."):
        made = getattr(made, part)
    assert made == expected


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("LISTEN_PORT", "80x", 'must be a whole number, is "80x"'),
        ("LISTEN_PORT", "", 'must be a whole number, is ""'),
        ("LISTEN_PORT", "1" * 5000, f'must be a whole number, is "{"1" * 40}..."'),
        ("LISTEN_ADMIN_HOSTS", "a,,b", '[1]: must be a host name or an IP address, is ""'),
        ("POLICY_CROSSOVER", "few", 'must be a number, is "few"'),
        ("POLICY_CROSSOVER", "nan", "must be a finite number, is nan"),
        ("POLICY_ALLOW_OVERRIDE", "yes", 'must be true or false, is "yes"'),
        ("LIMITS_MAX_PEEK_BYTES", "64M", f'{BAD_SIZE}"64M"'),
        ("AUTH_API_KEYS", "ann= ", f"ann: {BAD_KEY}"),
        ("AUTH_ADMIN_TOKEN", f"{SECRET}\n", BAD_KEY),
        ("LIMITS_QUEUE_SISE", "1", "unknown variable; did you mean SPECSWITCH_LIMITS_QUEUE_SIZE?"),
        (
            "ADMIN_API_KEY",
            SECRET,
            "unknown variable; did you mean SPECSWITCH_UPSTREAMS_ADMIN_API_KEY?",
        ),
        ("", "1", "unknown variable"),
        ("CONFIG", "x.toml", "unknown variable"),
    ],
)
def test_bad_environment(variable: str, text: str, message: str) -> None:
    """A finding about a value of the environment names the variable."""
    assert findings(env={f"SPECSWITCH_{variable}": text}) == ((f"SPECSWITCH_{variable}", message),)


def test_a_flag_over_a_bad_variable() -> None:
    """What is overridden is not judged, and the finding names the source that counts."""
    env = {"SPECSWITCH_LISTEN_PORT": "x"}
    assert config(env=env, overrides={"listen.port": 1}).listen.port == 1
    assert findings(env=env, overrides={"listen.port": -1}) == (
        ("listen.port", "must be at least 0, is -1"),
    )


def test_a_variable_for_a_section_that_is_none() -> None:
    """A section of the wrong type is still found when the environment sets a key in it."""
    found = findings("upstreams = 5", {"SPECSWITCH_UPSTREAMS_SPEC_URL": "http://gpu"})
    assert found == (("upstreams", "must be a table, is a number"),)


def test_an_override_that_is_no_key() -> None:
    """Flags are held to the same names."""
    assert findings(overrides={"limits": {}, "listen.prot": 1}) == (
        ("limits", "unknown key"),
        ("listen.prot", "unknown key; did you mean listen.port?"),
    )


def test_a_file(tmp_path: Path) -> None:
    """A file is read, with a byte order mark and with CRLF too."""
    file = tmp_path / "specswitch.toml"
    file.write_bytes(b"\xef\xbb\xbf[listen]\r\nport = 1\r\n")
    assert load(file=file, env={}, overrides={}).listen.port == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"[listen]\nport = \xff", "line 2: is not UTF-8"),
        (b"[listen]\nport = ?", "line 2, column 8: invalid value"),
        (b"[listen]\nport =", "line 2, column 7: invalid value"),
        (b"[listen]\n[listen]", "line 2, column 8: cannot declare ('listen',) twice"),
        (b"x = " + b"9" * 5000, TOO_MUCH),
        (b"x = " + b"[" * 9000, TOO_MUCH),
    ],
)
def test_a_file_that_cannot_be_read(content: bytes | None, message: str, tmp_path: Path) -> None:
    """It is one finding under the name of the file, beside those of the other sources."""
    file = tmp_path / "specswitch.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        load(
            file=file,
            env={"SPECSWITCH_LISTEN_PORT": "x"},
            overrides={"listen.admin_host": "0.0.0.0"},
        )
    assert raised.value.findings == (
        (str(file), message),
        ("SPECSWITCH_LISTEN_PORT", 'must be a whole number, is "x"'),
    )


def test_a_file_name_that_is_none() -> None:
    """A NUL in the name is a finding and no traceback."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load(file=Path("a\0b"), env={}, overrides={})


def test_describe() -> None:
    """Every key is there once, with its variable, a default that can be loaded, and a sentence."""
    settings = describe()
    assert len(SETTINGS) == len(VARIABLES) == len(settings)
    assert all(setting.doc.endswith(".") for setting in settings)
    sizes = {setting.path for setting in settings if setting.kind is Kind.SIZE}
    assert {SETTINGS[path].default for path in sizes} == {'"64MiB"', '"1GiB"', '"8MiB"', '"32KiB"'}
    for setting in settings:
        assert config(line(setting.path, setting.default)) == Config()


def test_eligibility_has_a_key_for_each_rule() -> None:
    """The rules of the core and the keys of the section are the same, in the same order."""
    assert list(Config.model_fields["eligibility"].default.model_dump()) == list(Rule)
    for verdict in Verdict:
        assert config(overrides={"eligibility.lora": str(verdict)}).eligibility.lora == verdict


def test_pydantic_says_something_that_we_have_no_words_for() -> None:
    """Its own message is passed on, and the value is not."""
    message = wording(
        {"type": "new_in_pydantic", "loc": ("log",), "msg": "Input is odd", "input": SECRET},
        ("log",),
    )
    assert message == "is refused: Input is odd"


def test_what_the_build_is_told_is_no_setting() -> None:
    """An image in which SPECSWITCH_COMPILE stayed set starts; what is like it is a stranger."""
    assert load(file=None, env={"SPECSWITCH_COMPILE": "1"}, overrides={}).listen.port == 8000
    with pytest.raises(ConfigError, match="SPECSWITCH_COMPILED: unknown variable"):
        load(file=None, env={"SPECSWITCH_COMPILED": "1"}, overrides={})
