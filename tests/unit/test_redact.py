"""What is left out of a server's account of itself."""

import pytest

from proxy.control.redact import redacted


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "admin_api_key",
        "API_KEY",
        "watermark_key",
        "ssl_keyfile_password",
        "hf_token",
        "key",
        "Password",
        "token",
        "authorization",
        "launch_command",
    ],
)
def test_what_is_called_a_secret_is_left_out(name: str) -> None:
    """At any depth, in lists too, whatever its value is."""
    values: tuple[object, ...] = ("sk-secret-1", None, 3, ["a"], {"a": "b"})
    for value in values:
        page: dict[str, object] = {
            "a": 1,
            name: value,
            "states": [{name: value, "b": [[{name: value, "c": 2}]]}],
            "within": {"deep": {name: value}},
        }
        left: dict[str, object] = {
            "a": 1,
            "states": [{"b": [[{"c": 2}]]}],
            "within": {"deep": {}},
        }
        assert redacted(page) == left


@pytest.mark.parametrize(
    "name",
    [
        "ssl_keyfile",
        "max_total_num_tokens",
        "tokenizer_path",
        "keys",
        "key_cache",
        "tokens",
        "monkey",
    ],
)
def test_what_only_sounds_like_one_stays(name: str) -> None:
    """Names are read to their end."""
    assert redacted({name: "value-of-it"}) == {name: "value-of-it"}


def test_a_secret_that_stands_elsewhere_is_replaced() -> None:
    """A command line as a list, an environment, a header within a text."""
    page: dict[str, object] = {
        "api_key": "sk-secret-1",
        "nested": {"admin_api_key": {"a": ["sk-secret-2"]}},
        "argv": ["--api-key", "sk-secret-1", "--port", "1"],
        "note": "Bearer sk-secret-2",
        "env": {"A": "xsk-secret-1x"},
        "model_path": "/models/sk",
    }
    assert redacted(page) == {
        "nested": {},
        "argv": ["--api-key", "[removed]", "--port", "1"],
        "note": "[removed]",
        "env": {"A": "[removed]"},
        "model_path": "/models/sk",
    }


def test_short_ones_are_not_looked_for() -> None:
    """Or half of all texts would hold one."""
    page: dict[str, object] = {"eos_token": "</s>", "api_key": "1234567", "a": "</s> 1234567"}
    assert redacted(page) == {"a": "</s> 1234567"}


def test_too_deep_is_an_error() -> None:
    """Who asked for the page says so of the server."""
    page: dict[str, object] = {}
    for _ in range(5000):
        page = {"a": page}
    with pytest.raises(RecursionError):
        redacted(page)
