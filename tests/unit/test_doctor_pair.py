"""Do two servers make a pair: what doctor finds when one of their flags differs."""

import pytest

from proxy.core import identity
from proxy.core.words import UpstreamName
from proxy.tools.doctor.diagnosis import Finding, Severity
from proxy.tools.doctor.pair import check_pair
from proxy.tools.doctor.server_info import ServerInfo
from tests.harness.server_infos import ABSENT, BASE, SPEC, server


def found(spec: ServerInfo, base: ServerInfo) -> dict[str, Finding]:
    """Findings by code, without those that say that all is well."""
    findings = [each for each in check_pair(spec, base) if each.severity is not Severity.OK]
    assert all(each.what and each.why and each.change for each in findings)
    return {each.code: each for each in findings}


def test_a_good_pair_has_nothing_to_say() -> None:
    """Every field that is compared is equal, and said to be."""
    findings = list(check_pair(server(SPEC), server(BASE)))
    assert {each.severity for each in findings} == {Severity.OK}
    assert "pair.model_path" in {each.code for each in findings}


_IDENTITY = {
    "model_path": "other/model",
    "revision": "main",
    "dtype": "float16",
    "quantization": "fp8",
    "tp_size": 2,
}


@pytest.mark.parametrize("field", _IDENTITY)
@pytest.mark.parametrize("changed", [SPEC, BASE])
def test_what_the_proxy_refuses_is_an_error(field: str, changed: UpstreamName) -> None:
    """A server whose identity differs gets no request, so doctor must not call it fine."""
    pair = {name: server(name) for name in (SPEC, BASE)}
    pair[changed] = server(changed, **{field: _IDENTITY[field]})
    assert identity.mismatches(SPEC, pair[SPEC].identity, pair[BASE].identity)
    assert found(pair[SPEC], pair[BASE])[f"pair.{field}"].severity is Severity.ERROR


def test_the_context_is_the_one_that_came_of_the_argument() -> None:
    """The argument is null on both; the models' entries tell the difference."""
    findings = found(server(SPEC, context=8192), server(BASE))
    assert findings.keys() == {"pair.context_length"}
    assert "--context-length 32768" in findings["pair.context_length"].change


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokenizer_path", "other"),
        ("served_model_name", "llama-3"),
        ("kv_cache_dtype", "fp8_e5m2"),
        ("chat_template", "chatml"),
        ("reasoning_parser", "qwen3"),
        ("tool_call_parser", None),
        ("grammar_backend", "llguidance"),
        ("page_size", 64),
        ("sampling_defaults", "openai"),
        ("preferred_sampling_params", {"min_p": 0.1}),
        ("version", "0.5.22"),
    ],
)
def test_what_makes_answers_differ_is_a_warning(field: str, value: object) -> None:
    """The same request would be answered differently, depending on the load."""
    findings = found(server(SPEC), server(BASE, **{field: value}))
    assert {code for code in findings if code != "pair.lora"} == {f"pair.{field}"}
    assert findings[f"pair.{field}"].severity is Severity.WARNING


def test_a_store_of_spec_alone_keeps_nothing() -> None:
    """What may be stored goes to base, so base's own store is enough."""
    pairs = {
        (mine, its): found(
            server(SPEC, enable_response_store=mine), server(BASE, enable_response_store=its)
        )
        for mine in (True, False)
        for its in (True, False)
    }
    assert [stores for stores, findings in pairs.items() if findings] == [(True, False)]
    finding = pairs[True, False]["pair.response_store"]
    assert finding.severity is Severity.WARNING
    assert "--enable-response-store" in finding.change


@pytest.mark.parametrize("field", ["pp_size", "dp_size", "disable_radix_cache", "stream_interval"])
def test_what_may_differ_is_a_note(field: str) -> None:
    """It has its reasons, and moves the crossover or the look of a stream."""
    findings = found(server(SPEC), server(BASE, **{field: 2}))
    assert findings[f"pair.{field}"].severity is Severity.NOTE


@pytest.mark.parametrize(
    ("value", "change"),
    [(64, "with --page-size 64"), (None, "without --page-size"), (True, "with --page-size")],
)
def test_a_change_names_the_flag_and_its_value(value: object, change: str) -> None:
    """What to change can be copied."""
    finding = found(server(SPEC), server(BASE, page_size=value))["pair.page_size"]
    assert finding.change == f"start both with the same value: spec {change}"


def test_what_one_of_them_does_not_show_is_unknown() -> None:
    """Another version of SGLang is no mismatch: a note names what was not compared."""
    findings = found(server(SPEC, page_size=ABSENT), server(BASE))
    assert findings.keys() == {"pair.unknown"}
    assert findings["pair.unknown"].what == "1 not compared, since not both show it"
    assert findings["pair.unknown"].names == ("page_size",)


def test_a_server_that_says_nothing_of_itself_is_no_mismatch() -> None:
    """Without /server_info nothing is compared."""
    assert found(server(SPEC), server(BASE, known=False)) == {}


def test_swapped_servers_are_named_so() -> None:
    """The likeliest mistake has its own words, and one finding instead of two."""
    spec = server(SPEC, speculative_algorithm=None)
    base = server(BASE, speculative_algorithm="EAGLE3")
    findings = found(spec, base)
    assert findings.keys() == {"pair.swapped"}
    assert findings["pair.swapped"].severity is Severity.ERROR


def test_a_spec_that_does_not_speculate_is_an_error() -> None:
    """Also where base is as it should be."""
    assert found(server(SPEC, speculative_algorithm=None), server(BASE)).keys() == {
        "spec.not_speculative"
    }


def test_a_base_that_speculates_is_an_error() -> None:
    """Rules that send requests to base rely on it."""
    assert found(server(SPEC), server(BASE, speculative_algorithm="NGRAM")).keys() == {
        "base.speculative"
    }


def test_one_address_is_one_server() -> None:
    """Nothing else is worth saying then."""
    url = "http://127.0.0.1:30001"
    findings = found(server(SPEC, url=url), server(BASE, url=url))
    assert findings.keys() == {"pair.same_server"}


def test_one_server_by_two_names_is_one_server() -> None:
    """Another name of the same host shows the same start, to the microsecond."""
    started = {"tokenizer_e2e": 16.933224352000025}
    spec = server(SPEC, url="http://localhost:30001", startup_time=started)
    base = server(BASE, port=30001, startup_time=started)
    assert found(spec, base).keys() == {"pair.same_server"}


@pytest.mark.parametrize(("port", "started"), [(30000, {"load": 1.5}), (30001, {})])
def test_two_servers_that_look_alike_are_two(port: int, started: dict[str, float]) -> None:
    """Another port is another server, and a start that is not told is no sign."""
    spec, base = server(SPEC, startup_time=started), server(BASE, port=port, startup_time=started)
    assert found(spec, base) == {}


@pytest.mark.parametrize(
    ("mine", "its", "what"),
    [
        ("a-secret", None, "spec asks for a key"),
        (None, "a-secret", "base asks for a key"),
        ("a-secret", "b-secret", "different keys"),
    ],
)
def test_keys_that_differ_are_told_and_not_shown(
    mine: str | None, its: str | None, what: str
) -> None:
    """A client's key would open one of the two."""
    finding = found(server(SPEC, api_key=mine), server(BASE, api_key=its))["pair.api_key"]
    assert what in finding.what
    assert "secret" not in str(finding.fields())


def test_keys_that_are_not_shown_are_not_compared() -> None:
    """SGLang may print a mark in place of a secret."""
    redacted = "<redacted>"
    spec, base = server(SPEC, api_key=redacted), server(BASE, api_key=None)
    assert "pair.api_key" not in {each.code for each in check_pair(spec, base)}


def test_adapters_of_one_server_only_are_a_warning() -> None:
    """A request that names one fails on the other."""
    finding = found(server(SPEC), server(BASE, adapters=("law", "poems")))["pair.lora"]
    assert "only base has law, poems" in finding.what


def test_a_specswitch_is_not_an_engine() -> None:
    """Its answers are those of two servers at once."""
    ours = ServerInfo(name=BASE, url="http://127.0.0.1:8000", known=False, is_specswitch=True)
    assert found(server(SPEC), ours)["pair.is_specswitch"].severity is Severity.ERROR
