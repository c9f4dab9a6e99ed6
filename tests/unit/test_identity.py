"""Whether two servers make a pair, by what they say they are."""

from collections.abc import Mapping
from dataclasses import replace

import httpx2
import pytest

from proxy.control.engine import read_identity
from proxy.core.identity import Identity, mismatches
from proxy.core.words import UpstreamName

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE

PLAIN = Identity(
    known=True,
    model="org/model",
    revision="main",
    dtype="bfloat16",
    quantization=None,
    context_length=8192,
    tensor_parallel=1,
    version="0.5.23",
)
DRAFTING = replace(PLAIN, speculative_algorithm="EAGLE3")
SILENT = Identity(known=False)


@pytest.mark.parametrize(
    ("running", "graphs", "cap"),
    [(48, 32, 32), (32, 48, 32), (48, None, 48), (None, 32, 32), (None, None, None)],
)
def test_the_cap_is_the_smaller_bound(
    running: int | None, graphs: int | None, cap: int | None
) -> None:
    """A server runs no more than it may and, at full speed, than it has graphs for."""
    assert replace(PLAIN, max_running_requests=running, graph_ceiling=graphs).cap == cap


@pytest.mark.parametrize(
    ("algorithm", "tree", "reserved"),
    [
        ("EAGLE3", (5, 4, 8), 20),
        ("EAGLE3", (3, 1, 4), 4),
        ("EAGLE", (2, 2, 16), 16),
        ("NEXTN", (3, 1, 4), 4),
        ("FROZEN_KV_MTP", (3, 1, 4), 4),
        ("STANDALONE", (3, 1, 4), 0),
        ("NGRAM", (None, None, 12), 0),
        ("EAGLE3", (None, None, None), 0),
        ("EAGLE3", (5, None, 8), 8),
        (None, (3, 1, 4), 0),
    ],
)
def test_drafts_take_of_the_context(
    algorithm: str | None, tree: tuple[int | None, int | None, int | None], reserved: int
) -> None:
    """max(topk x steps, draft tokens), of the EAGLE family alone."""
    steps, topk, drafts = tree
    server = replace(
        PLAIN,
        speculative_algorithm=algorithm,
        speculative_num_steps=steps,
        speculative_eagle_topk=topk,
        speculative_num_draft_tokens=drafts,
    )

    assert server.reserved_tokens == reserved


@pytest.mark.parametrize(
    ("info", "drafts", "reserved"),
    [
        ({"speculative_num_draft_tokens": 4}, 4, 4),
        ({"speculative_num_draft_tokens": 4, "speculative_adaptive": True}, 8, 8),
        ({"speculative_num_draft_tokens": 16, "speculative_adaptive": True}, 16, 16),
        ({"speculative_adaptive": True}, None, 3),
        ({"speculative_num_draft_tokens": "4"}, None, 3),
        ({"speculative_num_steps": None, "speculative_eagle_topk": None}, None, 0),
    ],
)
async def test_what_drafts_take_is_read(
    info: Mapping[str, object], drafts: int | None, reserved: int
) -> None:
    """From /server_info; adaptive speculation counts with the deepest step that it may take."""
    said = {
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        **info,
    }

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=said if request.url.path == "/server_info" else {})

    transport = httpx2.MockTransport(answer)
    async with httpx2.AsyncClient(transport=transport, base_url="http://engine") as client:
        found = await read_identity(client)

    assert (found.speculative_num_steps, found.speculative_eagle_topk) == (
        said["speculative_num_steps"],
        said["speculative_eagle_topk"],
    )
    assert found.speculative_num_draft_tokens == drafts
    assert found.reserved_tokens == reserved


@pytest.mark.parametrize("other", [None, SILENT, PLAIN])
def test_a_drafting_spec_is_right(other: Identity | None) -> None:
    """It speculates; a base that says the same or nothing is no reason against it."""
    assert mismatches(SPEC, DRAFTING, other) == ()


@pytest.mark.parametrize("other", [None, SILENT, DRAFTING])
def test_a_plain_base_is_right(other: Identity | None) -> None:
    """It does not speculate; a spec that says the same or nothing is no reason against it."""
    assert mismatches(BASE, PLAIN, other) == ()


@pytest.mark.parametrize("name", UpstreamName)
def test_a_server_that_says_nothing_is_trusted(name: UpstreamName) -> None:
    """Without /server_info there is nothing to hold against it, whatever the other says."""
    assert mismatches(name, SILENT, replace(DRAFTING, model="another")) == ()


def test_swapped_servers_are_both_wrong() -> None:
    """Each says what is wrong and asks the likely question."""
    assert mismatches(SPEC, PLAIN, DRAFTING) == (
        "it reports no speculative algorithm; are spec and base swapped?",
    )
    assert mismatches(BASE, DRAFTING, PLAIN) == (
        "it reports the speculative algorithm EAGLE3; are spec and base swapped?",
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": "org/other"}, "its model is 'org/model', that of base is 'org/other'"),
        ({"revision": "v2"}, "its revision is 'main', that of base is 'v2'"),
        ({"dtype": "float16"}, "its dtype is 'bfloat16', that of base is 'float16'"),
        ({"quantization": "awq"}, "its quantization is None, that of base is 'awq'"),
        ({"context_length": 4096}, "its context length is 8192, that of base is 4096"),
        ({"tensor_parallel": 2}, "its tensor parallel size is 1, that of base is 2"),
    ],
)
def test_what_must_match_is_named(change: dict[str, str | int], sentence: str) -> None:
    """Two models behind one name would answer two ways."""
    assert mismatches(SPEC, DRAFTING, replace(PLAIN, **change)) == (sentence,)  # type: ignore[arg-type]


def test_versions_and_sizes_may_differ() -> None:
    """What changes no answer is no mismatch: version, caps and adapters are each server's own."""
    other = replace(
        PLAIN,
        version="0.5.9",
        max_running_requests=2048,
        graph_ceiling=256,
        speculative_num_draft_tokens=16,
        adapters=frozenset({"tuned"}),
    )

    assert mismatches(SPEC, DRAFTING, other) == ()


def test_everything_wrong_is_said_at_once() -> None:
    """Who mends one fault should not have to wait for the next to be told."""
    found = mismatches(SPEC, PLAIN, replace(DRAFTING, model="x", dtype="y"))

    assert len(found) == 3
    assert "swapped" in found[0]
