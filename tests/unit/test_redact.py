"""What is left out of a server's account of itself."""

import json

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
        "secret",
        "client_secret",
        "clientSecrets",
        "api_keys",
        "apikey",
        "x-api-key",
        "X-Api-Key",
        "apiKey",
        "APIKey",
        "hf-token",
        "adminPassword",
        "db_passwords",
        "Proxy-Authorization",
        "launchCommand",
        "passphrase",
        "ssl_key_passphrase",
        "credential",
        "awsCredentials",
        "credentials",
        "bearer",
        "auth-bearer",
        "proxy_authorizations",
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
        "Monkey-Business",
        "secretary",
        "credentials_file",
        "bearer_format",
        "credentialed",
    ],
)
def test_what_only_sounds_like_one_stays(name: str) -> None:
    """Names are read to their end."""
    assert redacted({name: "value-of-it"}) == {name: "value-of-it"}


@pytest.mark.parametrize(
    "name",
    [
        "_swa_full_tokens_ratio_explicitly_set",
        "bucket_inter_token_latency",
        "bucket_time_to_first_token",
        "detokenizer_worker_num",
        "full_prefill_prefix_chunk_tokens",
        "generation_tokens_buckets",
        "kt_max_deferred_experts_per_token",
        "max_prefill_tokens",
        "max_total_num_tokens",
        "max_total_tokens",
        "num_reserved_decode_tokens",
        "prefill_delayer_token_usage_low_watermark",
        "prompt_tokens_buckets",
        "sampling_mask_max_tokens",
        "speculative_dspark_align_verify_tokens_to_graph_tier",
        "speculative_ngram_external_corpus_max_tokens",
        "speculative_num_draft_tokens",
        "speculative_token_map",
        "swa_full_tokens_ratio",
        "tbo_token_distribution_threshold",
        "token_capacity",
        "token_capacity_swa",
        "tokenizer_e2e",
        "tokenizer_metrics_allowed_custom_labels",
        "watermark_key_b",
    ],
)
def test_what_sglang_says_of_tokens_stays(name: str) -> None:
    """The fields of 0.5.23's page that have a key or a token in their names, and are none."""
    for value in (None, 48, [0.1, 0.2], "value-of-it"):
        assert redacted({name: value, "a": [{name: value}]}) == {name: value, "a": [{name: value}]}


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


def test_secrets_within_json_within_a_text() -> None:
    """However often it is wrapped; what is left is JSON again."""
    inner = json.dumps({"password": "pw", "host": "h", "url": "http://u:pw@h/"})
    page: dict[str, object] = {
        "model_loader_extra_config": '{"aws_secret_access_key": "AKIA", "token": "hf", "a": [1.5]}',
        "wrapped": json.dumps({"inner": inner}),
        "argv": ' [["--api-key", "short7"], ["--admin-api-key=short7"], {"api_key": "x"}]',
    }
    assert redacted(page) == {
        "model_loader_extra_config": '{"a": [1.5]}',
        "wrapped": json.dumps({"inner": json.dumps({"host": "h", "url": "http://[removed]@h/"})}),
        "argv": '[["--api-key", "[removed]"], ["--admin-api-key=[removed]"], {}]',
    }


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "{", '{"a":1,  "b":NaN}', '["a"]', "{% if a %}{{ b }}", "{'a': 1}", "[1]x", " "],
)
def test_a_text_without_secrets_stays_as_it_is(text: str) -> None:
    """To the letter, whether it is JSON or only looks like it."""
    assert redacted({"a": text, "b": [text]}) == {"a": text, "b": [text]}


def test_a_secret_within_json_is_looked_for_elsewhere() -> None:
    """Also where JSON has other letters for it, and where it is a name."""
    secret = 'sk-"secret"-\u00e9'
    page: dict[str, object] = {
        "config": json.dumps({"token": secret}),
        "note": f"Bearer {secret}",
        "more": json.dumps({"header": [secret]}),
        "named": json.dumps({secret.replace('"', ""): 1}),
        "api_key": secret.replace('"', ""),
    }
    assert redacted(page) == {
        "config": "{}",
        "note": "[removed]",
        "more": '{"header": ["[removed]"]}',
        "named": "{}",
    }


@pytest.mark.parametrize("levels", [600, 100_000])
def test_json_that_is_too_deep_is_left_out(levels: int) -> None:
    """It cannot be looked through, and the rest of the page is none the worse."""
    deep = '{"a":' * levels + '{"token":"abc"}' + "}" * levels
    assert redacted({"deep": deep, "b": 1}) == {"deep": "[removed]", "b": 1}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("http://u:pw@h:1/a", "http://[removed]@h:1/a"),
        ("redis://:p@w@h", "redis://[removed]@h"),
        ("https://token@h?a=b@c", "https://[removed]@h?a=b@c"),
        ("a http://u:p@h, b http://v:q@i", "a http://[removed]@h, b http://[removed]@i"),
        ("http://h/a@b", "http://h/a@b"),
        ("http://h?a@b", "http://h?a@b"),
        ("http://h a@b", "http://h a@b"),
        ("a@b", "a@b"),
    ],
)
def test_the_user_of_an_address_is_left_out(text: str, left: str) -> None:
    """Wherever it stands."""
    assert redacted({"endpoint": text, "a": [text]}) == {"endpoint": left, "a": [left]}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (["--api-key", "short7", "--port", "1"], ["--api-key", "[removed]", "--port", "1"]),
        (["--api-key=short7", "--port=1"], ["--api-key=[removed]", "--port=1"]),
        (["--api_key=two words"], ["--api_key=[removed]"]),
        (["--hf-token", "--port", "1"], ["--hf-token", "--port", "1"]),
        (["--ssl-keyfile-password", 7], ["--ssl-keyfile-password", "[removed]"]),
        (["api-key", "short7"], ["api-key", "short7"]),
        (["--tokenizer-path", "m"], ["--tokenizer-path", "m"]),
        ("serve --api-key short7 --port 1", "serve --api-key [removed] --port 1"),
        ("--api-key=short7 --port=1", "--api-key=[removed] --port=1"),
        ("--api-key 'two words' -a", "--api-key [removed] -a"),
        ("--a b --api-key", "--a b --api-key"),
        ("--api-key --port 1", "--api-key --port 1"),
        ("['--api-key', 'short7', '--port']", "['--api-key', [removed], '--port']"),
        ("x--api-key y", "x--api-key y"),
    ],
)
def test_the_argument_of_a_secret_flag_is_left_out(given: object, left: object) -> None:
    """However short it is: what it is is known from where it stands."""
    assert redacted({"argv": given}) == {"argv": left}


def test_secrets_of_other_pages_are_looked_for() -> None:
    """What is not shown of them may be shown of this one."""
    others: list[object] = [{"a": [{"api_key": "sk-secret-1"}]}, {"b": '{"token": "sk-secret-2"}'}]
    page: dict[str, object] = {"a": "Bearer sk-secret-1", "b": ["sk-secret-2"], "c": 1}
    assert redacted(page, others) == {"a": "[removed]", "b": ["[removed]"], "c": 1}


def test_too_deep_is_an_error() -> None:
    """Who asked for the page says so of the server."""
    page: dict[str, object] = {}
    for _ in range(5000):
        page = {"a": page}
    with pytest.raises(RecursionError):
        redacted(page)
