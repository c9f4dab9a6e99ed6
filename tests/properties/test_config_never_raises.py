"""Whatever the sources hold, the outcome is a configuration or a list of findings."""

from contextlib import suppress
from string import ascii_letters

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import load
from proxy.config.forms import Kind, from_text, size_text
from proxy.config.settings import SETTINGS, VARIABLES
from proxy.errors import ConfigError
from tests.harness.configs import config, outcome


@given(size=st.integers(1, 2**40))
def test_sizes_survive_being_written(size: int) -> None:
    """The text of a size is a size, and the same."""
    overrides = {"limits.max_buffered_bytes": size_text(size), "limits.max_body_bytes": 1}
    assert config(overrides=overrides).limits.max_buffered_bytes == size


NAMES = sorted({part for path in SETTINGS for part in path.split(".")})
KEYS = st.text(max_size=5) | st.sampled_from(NAMES)
PLAUSIBLE = ["base", "auto", "http://gpu:1", "1MiB", "a=b", "::1", "/ready", "\ud800", 10**400]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.dates()
    | st.sampled_from(PLAUSIBLE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(
    table=st.dictionaries(KEYS, VALUES, max_size=5),
    overrides=st.dictionaries(st.sampled_from(list(SETTINGS)), VALUES, max_size=5),
)
def test_any_table_gives_a_config_or_findings(
    table: dict[str, object], overrides: dict[str, object]
) -> None:
    """Whatever stands in a file or a flag, each finding about it fits on a line."""
    found = outcome(table, {}, overrides)
    assert all("\n" not in path + message for path, message in found)


@given(
    env=st.dictionaries(
        st.sampled_from(list(VARIABLES)) | st.text(ascii_letters).map("SPECSWITCH_".__add__),
        st.text(max_size=20) | st.sampled_from(["1", "-1", "a=b,c", "nan", "http://a@b"]),
        max_size=5,
    )
)
def test_any_environment_gives_a_config_or_findings(env: dict[str, str]) -> None:
    """Whatever stands in the environment, findings carry the names of variables."""
    assert all(path in env or path in SETTINGS for path, _ in outcome({}, env, {}))


@given(text=st.text(max_size=30), kind=st.sampled_from(Kind))
def test_reading_text_never_fails(text: str, kind: Kind) -> None:
    """What cannot be read stays text."""
    value = from_text(kind, text)
    assert not isinstance(value, str) or value == text


@given(content=st.binary(max_size=60))
def test_any_file_gives_a_config_or_findings(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever bytes a file holds, nothing but ConfigError is raised."""
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(content)
    with suppress(ConfigError):
        load(file=file, env={}, overrides={})
