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
        "ssl_key_passphrase",
        "credentials",
        "aws-credential",
        "bearer",
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


def test_json_within_a_text_is_looked_into() -> None:
    """As some of SGLang's arguments are; what names no secret stays as it was written."""
    page: dict[str, object] = {
        "model_loader_extra_config": '{"aws_secret_key": "AKIAXXXXXXXX", "threads": 8}',
        "hicache_storage_backend_extra_config": '[{"password": "p"}, {"a": NaN}]',
        "json_model_override_args": '{"a":  [1]}',
        "odd": "{'password': 'p'}",
        "deep": "[" * 100_000,
        "text": "[removed by nobody]",
        "elsewhere": "uses AKIAXXXXXXXX",
    }
    assert redacted(page) == {
        "model_loader_extra_config": '{"threads": 8}',
        "hicache_storage_backend_extra_config": '[{}, {"a": NaN}]',
        "json_model_override_args": '{"a":  [1]}',
        "odd": "[removed]",
        "deep": "[" * 100_000,
        "text": "[removed by nobody]",
        "elsewhere": "[removed]",
    }


def test_options_of_a_command_line_are_removed_however_short() -> None:
    """In a list and in one text, with a blank or an equals sign."""
    page: dict[str, object] = {
        "argv": ["serve", "--api-key", "short7", "--admin-api-key=x", "--port", "1"],
        "command": "serve --api-key short7 --admin-api-key='a b' --port 1",
        "long": ["--api-key", "long-enough"],
        "elsewhere": "a long-enough b",
    }
    assert redacted(page) == {
        "argv": ["serve", "--api-key", "[removed]", "--admin-api-key=[removed]", "--port", "1"],
        "command": "serve --api-key [removed] --admin-api-key=[removed] --port 1",
        "long": ["--api-key", "[removed]"],
        "elsewhere": "[removed]",
    }


def test_a_url_loses_what_stands_before_its_host() -> None:
    """User and password; an address of mail is none."""
    page: dict[str, object] = {
        "otlp": "http://u:pw@h:1/a?b@c",
        "mail": "a@b.c",
        "url": "http://h/@",
    }
    assert redacted(page) == {"otlp": "http://h:1/a?b@c", "mail": "a@b.c", "url": "http://h/@"}


def test_secrets_of_another_page_are_replaced_too() -> None:
    """Of two servers one account is made."""
    other = {"api_key": "the-other-key"}
    assert redacted({"a": "x the-other-key"}, other) == {"a": "[removed]"}


def test_too_deep_is_an_error() -> None:
    """Who asked for the page says so of the server."""
    page: dict[str, object] = {}
    for _ in range(5000):
        page = {"a": page}
    with pytest.raises(RecursionError):
        redacted(page)
