"""Readings of an SGLang server: from answers as 0.5.23 gives them, and from answers that make none.

The bodies below are cut from recorded answers of real servers, with the fields that are read.
"""

import errno
import json
import logging

import httpx2
import pytest

from proxy.control.engine import (
    MAX_ANSWER_BYTES,
    MAX_METRICS_BYTES,
    Load,
    Reading,
    check_ready,
    connect,
    read_counters,
    read_identity,
    read_load,
)
from proxy.core.identity import Identity
from proxy.core.signals import Totals
from proxy.errors import EngineError, EngineSilentError, EngineUnaskedError

Routes = dict[str, httpx2.Response | Exception]

SPEC_INFO: dict[str, object] = {
    "model_path": "/opt/tiny/target",
    "served_model_name": "tiny",
    "api_key": "a-secret",
    "context_length": None,
    "revision": None,
    "dtype": "auto",
    "quantization": None,
    "max_running_requests": 16,
    "tp_size": 1,
    "dp_size": 1,
    "speculative_algorithm": "EAGLE3",
    "disable_cuda_graph": False,
    "disable_decode_cuda_graph": False,
    "cuda_graph_config": {"decode": {"backend": "full", "max_bs": 32, "bs": [1, 2, 32]}},
    "internal_states": [
        {"effective_max_running_requests_per_dp": 16, "decode_cuda_graph_bs": [1, 2, 8]}
    ],
    "version": "0.5.23",
}
CARD: dict[str, object] = {"id": "tiny", "root": "tiny", "parent": None, "max_model_len": 4096}
MODELS: dict[str, object] = {"object": "list", "data": [CARD]}
LOADS: dict[str, object] = {
    "timestamp": "2026-11-29T16:42:04.391971+00:00",
    "version": "0.5.23",
    "loads": [
        {
            "timestamp": 1795970522.391971,
            "dp_rank": 0,
            "num_running_reqs": 3,
            "num_waiting_reqs": 1,
            "token_usage": 0.25,
            "gen_throughput": 86.22,
        }
    ],
}


def answer(value: object) -> httpx2.Response:
    """A good answer with `value` as JSON."""
    return httpx2.Response(200, json=value)


def client_of(routes: Routes, url: str = "http://engine:30001") -> httpx2.AsyncClient:
    """A client of a server that answers `routes`, and 404 elsewhere."""

    def handle(request: httpx2.Request) -> httpx2.Response:
        assert request.method == "GET"
        found = routes.get(request.url.path, httpx2.Response(404))
        if isinstance(found, Exception):
            raise found
        return found

    return httpx2.AsyncClient(base_url=url, transport=httpx2.MockTransport(handle))


async def identity_of(info: object, models: object = MODELS) -> Identity:
    """The identity of a server with these two answers."""
    routes: Routes = {"/server_info": answer(info), "/v1/models": answer(models)}
    return await read_identity(client_of(routes))


async def load_of(value: object) -> Load:
    """The load of a server that answers `value`."""
    return await read_load(client_of({"/v1/loads": answer(value)}))


# Is it ready -----------------------------------------------------------------------------------


async def test_2xx_is_ready() -> None:
    """Any 2xx says that the server takes requests."""
    await check_ready(client_of({"/ready": httpx2.Response(204)}), "/ready")


@pytest.mark.parametrize("status", [404, 405])
async def test_a_server_without_the_path_is_asked_for_its_models(status: int) -> None:
    """An older server has no /ready; that it lists its models is as good."""
    routes: Routes = {"/ready": httpx2.Response(status), "/v1/models": answer(MODELS)}

    await check_ready(client_of(routes), "/ready")


async def test_a_server_with_neither_path_is_not_ready() -> None:
    """What answers 404 to everything is no engine."""
    with pytest.raises(EngineError, match=r"http://engine:30001/v1/models answers 404"):
        await check_ready(client_of({}), "/ready")


@pytest.mark.parametrize("status", [199, 302, 400, 500, 503])
async def test_anything_but_2xx_is_not_ready(status: int) -> None:
    """A paused or starting server says so with its status."""
    with pytest.raises(EngineError, match=f"/ready answers {status}$"):
        await check_ready(client_of({"/ready": httpx2.Response(status)}), "/ready")


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_named_as_such(status: int) -> None:
    """A missing upstream key is the usual reason for these two."""
    with pytest.raises(EngineError, match=r"is its api_key configured here\?"):
        await check_ready(client_of({"/ready": httpx2.Response(status)}), "/ready")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx2.ConnectError("refused"), r"could not be read \(ConnectError: refused\)"),
        (httpx2.ReadTimeout(""), r"did not answer in time \(ReadTimeout\)"),
        (httpx2.RemoteProtocolError("half a head"), r"could not be read \(RemoteProtocolError\)$"),
        (httpx2.InvalidURL("no"), "InvalidURL"),
    ],
)
async def test_the_clients_exceptions_end_here(error: Exception, words: str) -> None:
    """Whatever the library raises leaves as an EngineError with the server's address."""
    with pytest.raises(EngineError, match=words) as caught:
        await check_ready(client_of({"/ready": error}), "/ready")

    assert str(caught.value).startswith("http://engine:30001/ready ")


async def test_an_address_is_shown_without_user_information() -> None:
    """Messages reach logs and /admin/state, which hold no secrets."""
    client = client_of({"/ready": httpx2.ConnectError("x")}, "http://me:secret@engine:1")

    with pytest.raises(EngineError, match=r"^http://engine:1/ready ") as caught:
        await check_ready(client, "/ready")

    assert "secret" not in str(caught.value)


async def test_an_endless_answer_is_cut() -> None:
    """A server that never stops talking does not fill our memory."""
    big = httpx2.Response(200, content=bytes(MAX_ANSWER_BYTES + 1))

    with pytest.raises(EngineError, match="more than 16777216 bytes"):
        await check_ready(client_of({"/ready": big}), "/ready")


# What is it ------------------------------------------------------------------------------------


async def test_identity_of_a_speculative_server() -> None:
    """Every field is where SGLang 0.5.23 has it."""
    expected = Identity(
        known=True,
        speculative_algorithm="EAGLE3",
        model="/opt/tiny/target",
        dtype="auto",
        context_length=4096,
        tensor_parallel=1,
        max_running_requests=16,
        graph_ceiling=8,
        version="0.5.23",
    )

    assert await identity_of(SPEC_INFO) == expected


async def test_a_plain_server_reports_no_algorithm() -> None:
    """Null is how a server without speculation says so."""
    identity = await identity_of(SPEC_INFO | {"speculative_algorithm": None})

    assert identity.speculative_algorithm is None


@pytest.mark.parametrize(("said", "stores"), [(True, True), (False, False), (None, False)])
async def test_whether_it_stores_responses(*, said: bool | None, stores: bool) -> None:
    """Where it is started with --enable-response-store."""
    identity = await identity_of(SPEC_INFO | {"enable_response_store": said})
    assert identity.stores_responses is stores


async def test_the_old_name_is_tried() -> None:
    """Before it was called /server_info it was /get_server_info."""
    routes: Routes = {"/get_server_info": answer(SPEC_INFO), "/v1/models": answer(MODELS)}

    assert (await read_identity(client_of(routes))).speculative_algorithm == "EAGLE3"


async def test_a_server_without_server_info_is_unknown() -> None:
    """It is trusted, which is not ours to decide; here it only has no identity."""
    assert await read_identity(client_of({})) == Identity(known=False)


async def test_an_unknown_server_still_has_adapters() -> None:
    """Its model list names them by their parent."""
    models = {"data": [CARD, {"id": "legal", "parent": "tiny"}]}

    identity = await read_identity(client_of({"/v1/models": answer(models)}))

    assert identity == Identity(known=False, adapters=frozenset({"legal"}))


async def test_adapters_are_the_cards_with_a_parent_or_another_name() -> None:
    """The served model itself is none; a card without a name is nothing."""
    others = [{"id": "legal", "parent": "tiny"}, {"id": "other"}, {"parent": "tiny"}, 7]

    identity = await identity_of(SPEC_INFO, {"data": [CARD, *others]})

    assert identity.adapters == {"legal", "other"}


async def test_an_adapters_length_is_not_the_models() -> None:
    """The context is that of the served model, wherever it stands in the list."""
    adapter = {"id": "legal", "parent": "tiny", "max_model_len": 5}

    assert (await identity_of(SPEC_INFO, {"data": [adapter, CARD]})).context_length == 4096


async def test_the_argument_is_the_context_where_no_card_says() -> None:
    """A server without a model list still has its own argument."""
    info = SPEC_INFO | {"context_length": 2048}

    identity = await read_identity(client_of({"/server_info": answer(info)}))

    assert identity.context_length == 2048


async def test_ranks_add_up() -> None:
    """With data parallelism every rank runs its own batch."""
    state = {"effective_max_running_requests_per_dp": 48, "decode_cuda_graph_bs": [1, 32]}

    identity = await identity_of(SPEC_INFO | {"internal_states": [state, state]})

    assert (identity.max_running_requests, identity.graph_ceiling) == (96, 64)


async def test_nothing_captured_is_no_ceiling() -> None:
    """A server on a CPU captures no graph, though its arguments name a size."""
    state = {"effective_max_running_requests_per_dp": 16, "decode_cuda_graph_bs": []}

    identity = await identity_of(SPEC_INFO | {"internal_states": [state]})

    assert identity.graph_ceiling is None
    assert identity.cap == 16


@pytest.mark.parametrize(
    ("changed", "ceiling"),
    [
        ({}, 32),
        ({"cuda_graph_config": {"decode": {"backend": "disabled", "max_bs": 32}}}, None),
        ({"disable_cuda_graph": True}, None),
        ({"disable_decode_cuda_graph": True}, None),
        ({"cuda_graph_config": None}, None),
        ({"cuda_graph_config": None, "cuda_graph_max_bs": 24}, 24),
        ({"internal_states": [{}, {}]}, 64),
    ],
)
async def test_the_ceiling_of_a_server_that_does_not_say_what_it_captured(
    changed: dict[str, object], ceiling: int | None
) -> None:
    """The resolved arguments say it, once for each rank, unless graphs are off."""
    info = SPEC_INFO | {"internal_states": []} | changed

    assert (await identity_of(info)).graph_ceiling == ceiling


async def test_the_argument_stands_where_ranks_do_not_say() -> None:
    """One rank that does not say makes the sum unknown."""
    states = [{"effective_max_running_requests_per_dp": 9}, {}]

    identity = await identity_of(SPEC_INFO | {"internal_states": states})

    assert identity.max_running_requests == 16


@pytest.mark.parametrize("nonsense", [-1, 1.5, True, "16", [], {}, None, 10**400])
async def test_a_field_that_makes_no_sense_is_unknown(nonsense: object) -> None:
    """Wrong types and impossible numbers say nothing, and harm nothing else."""
    info = SPEC_INFO | {"internal_states": nonsense, "max_running_requests": nonsense}
    info |= {"tp_size": nonsense, "version": nonsense if nonsense != "16" else 16}

    identity = await identity_of(info, {"data": nonsense})

    assert identity.max_running_requests is None
    assert identity.tensor_parallel is None
    assert identity.version is None
    assert identity.model == "/opt/tiny/target"


async def test_nan_beside_a_field_does_not_hide_it() -> None:
    """Python engines can write NaN, which is not JSON; the rest still counts."""
    body = json.dumps(SPEC_INFO | {"gen_throughput": float("nan"), "tp_size": float("nan")})
    routes: Routes = {"/server_info": httpx2.Response(200, content=body)}

    identity = await read_identity(client_of(routes))

    assert identity.tensor_parallel is None
    assert identity.speculative_algorithm == "EAGLE3"


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx2.Response(500), "answers 500"),
        (httpx2.Response(401), "api_key"),
        (httpx2.Response(200, content=b"<html>"), "does not answer JSON$"),
        (httpx2.Response(200, content=b"\xff\xfe\xfd"), "does not answer JSON$"),
        (httpx2.Response(200, content=b"[" * 200_000), "does not answer JSON$"),
        (httpx2.Response(200, content=b"[]"), "does not answer a JSON object$"),
        (httpx2.ReadTimeout(""), "did not answer in time"),
    ],
)
async def test_an_identity_that_cannot_be_read(
    response: httpx2.Response | Exception, words: str
) -> None:
    """It is an error, not an unknown server: that one would be trusted."""
    with pytest.raises(EngineError, match=words):
        await read_identity(client_of({"/server_info": response}))


async def test_models_that_cannot_be_read_are_an_error_too() -> None:
    """Half an identity would hide adapters."""
    routes: Routes = {"/server_info": answer(SPEC_INFO), "/v1/models": httpx2.Response(500)}

    with pytest.raises(EngineError, match="/v1/models answers 500"):
        await read_identity(client_of(routes))


# How busy is it --------------------------------------------------------------------------------


async def test_load_of_one_rank() -> None:
    """Age is by the engine's own clock: when it answered less when it wrote."""
    load = await load_of(LOADS)

    assert (load.running, load.waiting, load.token_usage) == (3, 1, 0.25)
    assert load.timestamp == 1795970522.391971
    assert load.age_seconds == pytest.approx(2.0)


async def test_load_of_two_ranks() -> None:
    """Counts add up, the fullest cache counts, the oldest part sets the age."""
    ranks = [
        {"timestamp": 1795970522, "num_running_reqs": 1, "num_waiting_reqs": 0, "token_usage": 0},
        {"timestamp": 1795970524, "num_running_reqs": 2, "num_waiting_reqs": 5, "token_usage": 0.5},
    ]

    load = await load_of(LOADS | {"loads": ranks})

    assert (load.running, load.waiting, load.token_usage) == (3, 5, 0.5)
    assert load.timestamp == 1795970524
    assert load.age_seconds == pytest.approx(2.391971)


@pytest.mark.parametrize("loads", [[], None, {}, [7], [{}], [{"num_running_reqs": -1}]])
async def test_a_load_that_says_nothing(loads: object) -> None:
    """Unknown is None."""
    assert await load_of({"loads": loads}) == Load()


async def test_one_silent_rank_makes_the_sum_unknown() -> None:
    """A sum without a rank would be too small, and too small is how engines get overrun."""
    assert (await load_of({"loads": [{"num_running_reqs": 4}, {}]})).running is None


@pytest.mark.parametrize("stamp", ["yesterday", "2026-11-29T16:42:04", 17, None])
async def test_without_a_clear_time_the_age_is_unknown(stamp: object) -> None:
    """A time without its zone could be hours off."""
    assert (await load_of(LOADS | {"timestamp": stamp})).age_seconds is None


async def test_an_age_is_never_negative() -> None:
    """Two clock readings of one host may cross by a hair."""
    early = LOADS | {"timestamp": "2026-11-29T16:42:00+00:00"}

    assert (await load_of(early)).age_seconds == 0.0


async def test_a_server_without_loads_is_an_error() -> None:
    """The caller decides what that means; for the prober it is no failed probe."""
    with pytest.raises(EngineError, match="http://engine:30001 has no /v1/loads"):
        await read_load(client_of({}))


def ranks_of(*moments: object) -> dict[str, object]:
    """The loads of ranks with these moments of their decode steps."""
    return {"loads": [{"decode_moments": each} for each in moments]}


MOMENTS = [773.0, 2158.0, 10463514.0, 13002.0, 33795591.0, 6052.0]


async def test_decode_steps_are_read_as_what_they_yielded() -> None:
    """Recorded from a speculative server: 2158 verify rounds yielded 6052 tokens, 2.80 each."""
    assert (await load_of(ranks_of(MOMENTS))).decoded == Totals(6052.0, 2158.0)


async def test_decode_steps_of_ranks_add_up() -> None:
    """A rank that has decoded nothing yet says null, and is no more than that."""
    load = await load_of(ranks_of(MOMENTS, None, [1, 2, 3, 4, 5, 6]))

    assert load.decoded == Totals(6058.0, 2160.0)


@pytest.mark.parametrize(
    "moments",
    [
        None,
        [],
        7,
        "123456",
        MOMENTS[:5],
        [0, None, 0, 0, 0, 1],
        [0, 1, 0, 0, 0, -1],
        [0, float("nan"), 0, 0, 0, 1],
        [0, 1, 0, 0, 0, float("inf")],
        [0, True, 0, 0, 0, 1],
    ],
)
async def test_decode_steps_that_make_no_sense_are_unknown(moments: object) -> None:
    """Nothing is concluded from them, and the rest of the load is read all the same."""
    body = json.dumps({"loads": [{"decode_moments": moments, "token_usage": 0.5}]})
    load = await read_load(client_of({"/v1/loads": httpx2.Response(200, content=body)}))

    assert load == Load(token_usage=0.5)


# What has it counted ---------------------------------------------------------------------------


async def counters_at(response: httpx2.Response) -> object:
    """What is read of a server that answers `response` at /metrics."""
    return await read_counters(client_of({"/metrics": response}))


@pytest.mark.parametrize("status", [404, 405])
async def test_a_server_without_metrics_has_no_counters(status: int) -> None:
    """SGLang has them with --enable-metrics only; that is no fault."""
    assert await counters_at(httpx2.Response(status)) is None


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx2.Response(500), "/metrics answers 500$"),
        (httpx2.Response(307), "/metrics answers 307$"),
        (httpx2.Response(200, content=b"sglang:num_requests_total{} NaN\n"), "no count"),
        (httpx2.Response(200, content=b"x" * (MAX_METRICS_BYTES + 1)), "more than 4194304 bytes"),
    ],
)
async def test_counters_that_cannot_be_read(response: httpx2.Response, words: str) -> None:
    """An error with the server's address; a page without end is not held."""
    with pytest.raises(EngineError, match=words):
        await counters_at(response)


def test_a_reading_ages() -> None:
    """Its age is the engine's part and ours; it goes stale by ours."""
    reading = Reading(Load(age_seconds=0.5), at=100.0, stale_after=6.0)

    assert reading.age(102.0) == 2.5
    assert reading.fresh(106.0)
    assert not reading.fresh(106.1)
    assert Reading(Load(), at=100.0, stale_after=6.0).age(101.0) == 1.0


# The client ------------------------------------------------------------------------------------


async def test_the_client_takes_nothing_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proxy meant for the internet has no business between us and an engine."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with connect("http://engine:1", api_key=None, tls=None, timeout=5.0) as client:
        assert not client.trust_env
        assert not client.follow_redirects
        assert client.timeout == httpx2.Timeout(5.0)
        assert "authorization" not in client.headers
        assert client.headers["accept-encoding"] == "identity"


async def test_the_upstreams_key_is_sent() -> None:
    """As SGLang wants it: a bearer token."""
    async with connect("http://engine:1", api_key="k", tls=None, timeout=5.0) as client:
        assert client.headers["authorization"] == "Bearer k"


async def test_no_reading_writes_a_log(caplog: pytest.LogCaptureFixture) -> None:
    """What is read holds secrets; nothing of it is logged here."""
    with caplog.at_level(logging.DEBUG, logger="proxy"):
        await identity_of(SPEC_INFO)

    assert "a-secret" not in caplog.text


async def test_silence_is_told_apart_from_a_connection_that_is_not_made() -> None:
    """Who is silent may be busy; who cannot be connected to is not there."""
    with pytest.raises(EngineSilentError):
        await check_ready(client_of({"/ready": httpx2.ReadTimeout("")}), "/ready")
    with pytest.raises(EngineError, match="could not be connected to in time") as caught:
        await check_ready(client_of({"/ready": httpx2.ConnectTimeout("")}), "/ready")
    assert not isinstance(caught.value, EngineSilentError)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_our_own_want_of_descriptors_is_no_fault_of_a_server(number: int) -> None:
    """However deep in what the library tells it is."""
    error = httpx2.ConnectError("All connection attempts failed")
    error.__cause__ = RuntimeError("some layer")
    error.__cause__.__context__ = OSError(number, "Too many open files")
    with pytest.raises(EngineUnaskedError, match="no file descriptor is free"):
        await check_ready(client_of({"/ready": error}), "/ready")
