"""SGLang's own load generator: it completes, and each of its requests is counted."""

import pytest

from proxy.core.endpoints import find
from tests.clients.rows import BENCHMARK, Client, row
from tests.clients.stand import Stand, counts

TOKENS = 16


@pytest.mark.parametrize(
    ("backend", "path"),
    [
        ("sglang", "/generate"),
        ("sglang-oai", "/v1/completions"),
        ("sglang-oai-chat", "/v1/chat/completions"),
    ],
)
@row("`--backend sglang`, `sglang-oai` and `sglang-oai-chat`, streamed", BENCHMARK)
def test_the_load_generator(stand: Stand, client: Client, backend: str, path: str) -> None:
    """24 requests, eight at a time, and one to warm up; it asks for model and server, too."""
    before = counts(stand.wide)
    saw = stand.saw(client, backend)
    found = counts(stand.wide) - before

    assert saw["completed"] == 24
    assert saw["errors"] == []
    assert saw["tokens"] == 24 * TOKENS
    assert found[path, "ok"] == saw["asked"] == 25
    assert found["/v1/models", "ok"] >= 1
    assert (saw["server_info"] is None) == (find(b"/server_info") is None)
    assert not [key for key in found if key[1] in {"failed", "abandoned"}]
    with stand.counting():
        pass  # nothing is left
