"""The allow-list against the routes that a real SGLang server has, read off the server itself."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from proxy.core.endpoints import ENDPOINTS, Kind, find
from tests.engines.pair import Engine, EnginePair, wait_until
from tests.harness.process import Specswitch

VALUES = {"model": "tiny", "response_id": "resp_1"}
"""What stands in a route for its parameters; any other one gets `x`."""


PROBED = {"/ready", "/server_info", "/v1/loads", "/metrics", "/openapi.json"}
"""What the prober and these tests ask of a server by themselves."""
LAST = "the-last-one"
"""A model that nobody has, asked for through the proxy."""


def routes(engine: Engine) -> Iterator[tuple[str, str]]:
    """Method and path of every route that the server describes, with values for parameters."""
    described = engine.get("/openapi.json").raise_for_status().json()["paths"]
    for template, operations in described.items():
        path = "/".join(
            VALUES.get(part[1:-1].partition(":")[0], "x") if part.startswith("{") else part
            for part in template.split("/")
        )
        for method in operations:
            yield method.upper(), path


@pytest.fixture
def proxied(engines: EnginePair, tmp_path: Path) -> Iterator[Specswitch]:
    """The proxy in front of the pair."""
    with Specswitch(
        tmp_path / "specswitch.log", spec_url=engines.spec.url, base_url=engines.base.url
    ) as process:
        yield process


def test_what_passes_is_known_to_the_server(engines: EnginePair) -> None:
    """Every row of the allow-list that is passed on is a route of both servers, by that method.

    A few are not described (`/tokenize` is another name of `/v1/tokenize`); those are tried.
    """
    for engine in (engines.spec, engines.base):
        has = set(routes(engine))
        for row in ENDPOINTS:
            path = row.template.replace("/v1/models/{id}", "/v1/models/tiny")
            path = path.replace("{id}", "resp_1")
            for method in set(row.methods) - {"HEAD"}:
                if row.tunnel:
                    continue  # a WebSocket is not described; see test_websocket.py
                if row.kind is not Kind.OWN and (method, path) not in has:
                    answer = httpx2.request(method, engine.url + path, json={}, trust_env=False)
                    assert answer.status_code not in {404, 405}, (engine.name, method, path)


def test_every_route_is_on_the_page_with_its_methods(engines: EnginePair) -> None:
    """docs/endpoints.md says of each route of the server what the pair does with it.

    What the pair has of them it has by the server's methods, all of them and no other.
    """
    page = (Path(__file__).parents[2] / "docs" / "endpoints.md").read_text(encoding="utf-8")
    described = engines.base.get("/openapi.json").raise_for_status().json()["paths"]
    names = {"{model}": "{id}", "{response_id}": "{id}"}
    rows = {row.template: row for row in ENDPOINTS}
    for template, operations in described.items():
        path = "/".join(names.get(part, part) for part in template.split("/"))
        assert f"`{path}`" in page, path
        if (row := rows.get(path)) is not None:
            methods = {method.upper() for method in operations}
            assert methods - {"HEAD"} == set(row.methods) - {"HEAD"}, path


def test_what_is_not_listed_never_arrives(engines: EnginePair, proxied: Specswitch) -> None:
    """Every other route of the server, by every method that it has there: refused by us.

    The servers' own logs show that nothing came, and that what is listed did.
    """
    found = sorted(set(routes(engines.spec)) | set(routes(engines.base)))
    refused = [(method, path) for method, path in found if not _listed(method, path)]
    assert len(refused) > 30, found
    before = [len(log) for log in _logs(engines)]  # at its start a server asks itself for some
    with httpx2.Client(trust_env=False, timeout=30.0) as client:
        for method, path in refused:
            answer = client.request(method, proxied.url + path, json={})
            row = find(path.encode())
            expected = 404 if row is None or row.reserved else 405
            assert answer.status_code == expected, (method, path)
        assert client.get(f"{proxied.url}/v1/models/{LAST}").status_code == 404
    wait_until(lambda: any(LAST in log for log in _logs(engines)), "the last one is logged")
    said = "".join(log[start:] for log, start in zip(_logs(engines), before, strict=True))
    for method, path in refused:
        if path not in PROBED:
            assert f'"{method} {path} HTTP/1.1"' not in said, (method, path)


def _listed(method: str, path: str) -> bool:
    row = find(path.encode())
    return row is not None and method in row.methods and not row.reserved


def _logs(engines: EnginePair) -> list[str]:
    return [each.log.read_text(errors="replace") for each in (engines.spec, engines.base)]
