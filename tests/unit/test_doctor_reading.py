"""What doctor reads of a server, from answers of any kind."""

import json
from collections.abc import Mapping
from pathlib import Path

import httpx2
import pytest

from proxy.control.engine import read_identity
from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError
from proxy.tools.asking import connect
from proxy.tools.doctor.model_files import read_model_file
from proxy.tools.doctor.server_info import ReadError, ServerInfo, Trouble, read_server
from tests.harness.server_infos import ABSENT, BASE, SPEC, arguments, rank, server

MODELS = {"data": [{"id": "llama", "parent": None, "max_model_len": 32768}]}


def answering(pages: Mapping[str, object]) -> httpx2.AsyncClient:
    """A client of a server that has these pages: a status, an exception, bytes, or JSON."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        page = pages.get(request.url.path, 404)
        match page:
            case BaseException():
                raise page
            case int(status):
                return httpx2.Response(status)
            case bytes(content):
                return httpx2.Response(200, content=content)
            case _:
                return httpx2.Response(200, content=json.dumps(page))

    return httpx2.AsyncClient(
        base_url="http://someone:secret@127.0.0.1:30001", transport=httpx2.MockTransport(answer)
    )


async def read(pages: Mapping[str, object], name: UpstreamName = SPEC) -> ServerInfo:
    """What is read of such a server."""
    async with answering(pages) as client:
        return await read_server(name, client)


@pytest.mark.asyncio
async def test_a_server_is_read_whole() -> None:
    """Its arguments, and what came of them."""
    info = await read({"/v1/models": MODELS, "/server_info": arguments(SPEC)})
    assert info.known
    assert (info.algorithm, info.context_length, info.kv_tokens) == ("EAGLE3", 32768, 90_000)
    assert (info.max_running, info.graph_ceiling) == (16, 16)
    assert "secret" not in info.url


@pytest.mark.asyncio
@pytest.mark.parametrize("name", [SPEC, BASE])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"speculative_adaptive": True},
        {"speculative_num_steps": 5, "speculative_eagle_topk": 8},
        {"speculative_num_steps": "5", "speculative_eagle_topk": -1},
        {"speculative_num_steps": ABSENT, "speculative_eagle_topk": ABSENT},
        {"speculative_num_draft_tokens": 32},
        {"speculative_num_draft_tokens": 32, "speculative_adaptive": True},
        {"speculative_num_draft_tokens": ABSENT, "speculative_adaptive": True},
        {"disable_cuda_graph": True},
        {"internal_states": ABSENT, "cuda_graph_max_bs": 32, "context_length": 4096},
        {"internal_states": [], "cuda_graph_config": {"decode": {"max_bs": 64}}},
        {"internal_states": [], "cuda_graph_config": {"decode": {"backend": "disabled"}}},
        {"internal_states": [{}, {}], "cuda_graph_max_bs": 8},
        {"internal_states": [rank(SPEC), rank(SPEC, decode_cuda_graph_bs=[4])]},
        {"served_model_name": None, "tp_size": "many", "version": 5},
    ],
)
async def test_the_identity_is_the_one_that_the_proxy_reads(
    name: UpstreamName, changed: dict[str, object]
) -> None:
    """Both are made from the same pages; a calibration must be for the server that serves."""
    pages = {"/v1/models": MODELS, "/server_info": arguments(name, **changed)}
    async with answering(pages) as client:
        info, identity = await read_server(name, client), await read_identity(client)
    assert info.identity == identity


@pytest.mark.asyncio
async def test_the_shape_of_the_drafts_is_a_part_of_the_identity() -> None:
    """As it is said, by both readings: a calibration is for this shape and no other."""
    shape = {
        "speculative_num_steps": 5,
        "speculative_eagle_topk": 8,
        "speculative_num_draft_tokens": 32,
    }
    pages = {"/v1/models": MODELS, "/server_info": arguments(SPEC, **shape)}
    async with answering(pages) as client:
        info, identity = await read_server(SPEC, client), await read_identity(client)
    for found in (info.identity, identity):
        assert {name: getattr(found, name) for name in shape} == shape


@pytest.mark.asyncio
async def test_a_server_without_server_info_is_read_all_the_same() -> None:
    """Another vendor has /v1/models only."""
    info = await read({"/v1/models": MODELS})
    assert not info.known
    assert info.served_model == "llama"
    assert not info.identity.known


@pytest.mark.asyncio
@pytest.mark.parametrize("page", [404, 500, b"<html>", [1]])
async def test_pages_that_a_server_may_do_without_are_no_trouble(page: object) -> None:
    """What /model_info and /v1/loads would say is unknown then."""
    pages = {"/v1/models": MODELS, "/server_info": arguments(SPEC)}
    info = await read({**pages, "/model_info": page, "/v1/loads": page})
    assert info.known
    assert info.running is None
    assert not info.model_info


@pytest.mark.asyncio
async def test_the_older_name_of_a_page_is_tried() -> None:
    """/get_server_info is what older servers have."""
    pages = {"/v1/models": MODELS, "/get_server_info": arguments(BASE)}
    assert (await read(pages)).version == "0.5.23"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("pages", "trouble"),
    [
        ({"/v1/models": 401}, Trouble.KEY),
        ({"/v1/models": MODELS, "/server_info": 403}, Trouble.KEY),
        ({"/v1/models": 500}, Trouble.ANSWER),
        ({"/v1/models": 307}, Trouble.ANSWER),
        ({"/v1/models": b"<html>"}, Trouble.ANSWER),
        ({"/v1/models": [1, 2]}, Trouble.ANSWER),
        ({"/v1/models": b"[" * 100_000}, Trouble.ANSWER),
        ({"/v1/models": b'{"data": "%s"}' % (b"x" * 2**24)}, Trouble.ANSWER),
        ({"/v1/models": httpx2.RemoteProtocolError("with our secret")}, Trouble.ANSWER),
        ({"/v1/models": httpx2.ConnectError("refused")}, Trouble.UNREACHABLE),
        ({"/v1/models": httpx2.ConnectTimeout("late")}, Trouble.UNREACHABLE),
        ({"/v1/models": MODELS, "/server_info": httpx2.ReadTimeout("late")}, Trouble.SILENT),
    ],
)
async def test_a_server_that_cannot_be_read_is_told_apart(
    pages: Mapping[str, object], trouble: Trouble
) -> None:
    """Each trouble has another remedy; none shows a key."""
    with pytest.raises(ReadError) as caught:
        await read(pages)
    assert caught.value.trouble is trouble
    assert "http://127.0.0.1:30001/" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.asyncio
async def test_pages_of_nonsense_are_unknown() -> None:
    """What has the wrong type is unknown, NaN too."""
    pages = {
        "/v1/models": b'{"data": {"id": 3}}',
        "/server_info": b'{"internal_states": 7, "max_running_requests": NaN, "version": null}',
        "/model_info": {"preferred_sampling_params": "{not json"},
        "/v1/loads": {"loads": [3, {"num_running_reqs": -1}]},
    }
    info = await read(pages)
    assert info.known
    assert (info.max_running, info.version, info.running, info.served_model) == (None,) * 4
    assert not info.model_info.within("preferred_sampling_params")


@pytest.mark.asyncio
async def test_a_specswitch_is_known_by_its_header() -> None:
    """It answers for two servers, so it is not one."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=MODELS, headers={"x-specswitch-upstream": "base"})

    transport = httpx2.MockTransport(answer)
    async with httpx2.AsyncClient(base_url="http://127.0.0.1", transport=transport) as client:
        assert (await read_server(SPEC, client)).is_specswitch


def test_the_running_limit_is_of_all_ranks() -> None:
    """Or the argument, or what /v1/loads says, whichever is known."""
    assert server(SPEC, internal_states=[rank(SPEC)] * 2).max_running == 32
    assert server(SPEC, internal_states=[], max_running_requests=20).max_running == 20
    assert server(SPEC, internal_states=[], max_running_requests=None).max_running is None


def test_a_model_file_is_read_where_the_model_is_a_folder_here(tmp_path: Path) -> None:
    """A folder without it sets nothing; elsewhere, broken or odd it is unknown."""
    model = str(tmp_path)
    absent = read_model_file(model, "generation_config.json")
    assert absent is not None
    assert not absent
    (tmp_path / "generation_config.json").write_text('{"min_p": 0.1}')
    found = read_model_file(model, "generation_config.json")
    assert found is not None
    assert found.number("min_p") == 0.1
    (tmp_path / "config.json").write_text("{")
    assert read_model_file(model, "config.json") is None
    for elsewhere in (None, "meta-llama/Llama", str(tmp_path / "absent")):
        assert read_model_file(elsewhere, "config.json") is None


def test_a_url_that_is_none_is_refused() -> None:
    """Before anything is asked; that is asking's own check."""
    with pytest.raises(SpecswitchError, match="no URL"):
        connect("127.0.0.1:30001")
