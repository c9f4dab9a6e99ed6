"""Short ways to a configuration and to what is wrong with one; nothing is read from a disk."""

import tomllib
from collections.abc import Mapping

import pytest

from proxy.config import Config
from proxy.config.sources import combine
from proxy.errors import ConfigError

SECRET = "sk-do-not-tell"
Findings = tuple[tuple[str, str], ...]


def config(
    text: str = "",
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Config:
    """What `text` of a file, the environment and the flags make together."""
    return combine(tomllib.loads(text), env=env or {}, overrides=overrides or {})


def findings(
    text: str = "",
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Findings:
    """What is wrong with them."""
    with pytest.raises(ConfigError) as raised:
        config(text, env, overrides)
    return raised.value.findings


def line(path: str, value: str) -> str:
    """A file that sets one key."""
    section, _, key = path.rpartition(".")
    return f"[{section}]\n{key} = {value}\n"


def outcome(
    table: Mapping[str, object], env: Mapping[str, str], overrides: Mapping[str, object]
) -> Findings:
    """What is wrong with any sources, nothing for a configuration."""
    try:
        combine(table, env=env, overrides=overrides)
    except ConfigError as error:
        return error.findings
    return ()
