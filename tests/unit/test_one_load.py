"""/v1/loads of two servers as that of one with two ranks."""

import json

import pytest

from proxy.control.one_load import one_load, one_rank, prometheus
from proxy.control.one_metrics import one_metrics
from proxy.core.words import UpstreamName

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE


def page(*ranks: dict[str, object], **more: object) -> dict[str, object]:
    """As SGLang 0.5.23 answers."""
    head = {"timestamp": "2026-01-01T00:00:00+00:00", "version": "0.5.23", "accelerator": "a"}
    return {**head, "num_accelerators": 1, "loads": [*ranks], **more}


def test_spec_is_rank_0_and_base_rank_1() -> None:
    """With all that each says; the rest is base's."""
    spec = page({"dp_rank": 0, "num_running_reqs": 1, "speculative": {"accept_length": 2.0}})
    base = page({"dp_rank": 0, "num_running_reqs": 5, "decode_moments": None}, version="x")
    assert one_load({SPEC: spec, BASE: base}) == {
        **page(version="x"),
        "loads": [
            {"dp_rank": 0, "num_running_reqs": 1, "speculative": {"accept_length": 2.0}},
            {"dp_rank": 1, "num_running_reqs": 5, "decode_moments": None},
        ],
    }


@pytest.mark.parametrize(("name", "rank"), [(SPEC, 0), (BASE, 1)])
def test_one_alone_keeps_its_rank(name: UpstreamName, rank: int) -> None:
    """So that a server that is missing does not make the other look like it."""
    made = one_load({name: page({"dp_rank": 0, "num_running_reqs": 1})})
    assert made == page({"dp_rank": rank, "num_running_reqs": 1})


@pytest.mark.parametrize(("rank", "found"), [(0, [0]), (1, [1]), (2, []), (-1, []), (None, [0, 1])])
def test_one_rank_can_be_asked_for(rank: int | None, found: list[int]) -> None:
    """Another one has no load, as in SGLang."""
    made = one_load({SPEC: page({"a": 1}), BASE: page({"a": 2})}, rank)
    loads = made["loads"]
    assert isinstance(loads, list)
    assert [each["dp_rank"] for each in loads] == found


@pytest.mark.parametrize("loads", [None, "a", 1, {}, [], [None, "a"]])
def test_odd_loads_are_none(loads: object) -> None:
    """The other's stands alone."""
    made = one_load({SPEC: {"loads": loads}, BASE: page({"a": 2})})
    assert made["loads"] == [{"a": 2, "dp_rank": 1}]
    made = one_load({SPEC: page({"a": 2}), BASE: {"loads": loads}})
    assert made["loads"] == [{"a": 2, "dp_rank": 0}]


def waiting_at(made: dict[str, object]) -> list[tuple[object, object]]:
    """Each rank, and how many wait there."""
    loads = made["loads"]
    assert isinstance(loads, list)
    return [(each["dp_rank"], each.get("num_waiting_reqs")) for each in loads]


@pytest.mark.parametrize(
    ("names", "rank", "found"),
    [
        ((SPEC, BASE), None, [(0, 1), (1, 12)]),
        ((SPEC, BASE), 1, [(1, 12)]),
        ((SPEC, BASE), 0, [(0, 1)]),
        ((SPEC,), None, [(0, 11)]),
        ((BASE,), None, [(1, 12)]),
    ],
)
def test_what_waits_before_the_servers_waits_at_base(
    names: tuple[UpstreamName, ...], rank: int | None, found: list[tuple[int, int]]
) -> None:
    """Or at spec where it is alone."""
    waiting = {SPEC: 1, BASE: 2}
    pages = {name: page({"num_waiting_reqs": waiting[name]}) for name in names}
    assert waiting_at(one_load(pages, rank, waiting=10)) == found


def test_what_waits_is_in_every_figure_of_it() -> None:
    """And in none that is not there, since it was not asked for; a server's page is left as is."""
    rank = {"num_total_reqs": 5, "queues": {"waiting": 2, "paused": 1}, "num_running_reqs": 3}
    sums = {"total_waiting_reqs": 2, "total_reqs": 5, "total_running_reqs": 3}
    base = page(dict(rank), aggregate=sums)
    made = one_load({BASE: base, SPEC: page({"num_waiting_reqs": None})}, waiting=10)
    assert made["loads"] == [
        {"dp_rank": 0, "num_waiting_reqs": None},
        {
            "dp_rank": 1,
            "num_total_reqs": 15,
            "queues": {"waiting": 12, "paused": 1},
            "num_running_reqs": 3,
        },
    ]
    assert made["aggregate"] == {
        "total_waiting_reqs": 12,
        "total_reqs": 15,
        "total_running_reqs": 3,
    }
    assert base["loads"] == [rank]


def test_what_waits_goes_to_spec_where_base_has_no_rank() -> None:
    """It must not be lost."""
    pages = {SPEC: page({"num_waiting_reqs": 1}), BASE: page()}
    assert waiting_at(one_load(pages, waiting=10)) == [(0, 11)]


def test_ranks_of_one_server_become_one() -> None:
    """Each figure by its rule."""
    first: dict[str, object] = {
        "timestamp": 20.0,
        "dp_rank": 0,
        "num_running_reqs": 1,
        "max_total_num_tokens": 100,
        "token_usage": 0.5,
        "gen_throughput": 10.0,
        "cache_hit_rate": 0.2,
        "utilization": 0.0,
        "decode_moments": [1, 2.0],
        "memory": {"weight_gb": 1.0},
        "speculative": {"accept_length": 2.0, "accept_rate": 0.5},
        "disaggregation": {"mode": "null", "kv_transfer_latency_ms": 2.0},
        "odd": [1],
        "lists": [1, "a"],
        "flag": True,
        "only": 1,
        "none": None,
    }
    second: dict[str, object] = {
        "timestamp": 10.0,
        "dp_rank": 1,
        "num_running_reqs": 2,
        "max_total_num_tokens": 300,
        "token_usage": 0.1,
        "gen_throughput": 5.0,
        "cache_hit_rate": 0.4,
        "utilization": 1.0,
        "decode_moments": [10, 20.0],
        "memory": {"weight_gb": 1.0},
        "speculative": {"accept_length": 3.0, "accept_rate": 0.7},
        "disaggregation": {"mode": "null", "kv_transfer_latency_ms": 4.0},
        "odd": [1, 2],
        "lists": [2, "b"],
        "flag": True,
        "none": None,
    }
    assert one_rank([first, second], 1) == {
        "timestamp": 10.0,
        "dp_rank": 1,
        "num_running_reqs": 3,
        "max_total_num_tokens": 400,
        "token_usage": 0.5,
        "gen_throughput": 15.0,
        "cache_hit_rate": pytest.approx((0.2 * 1 + 0.4 * 2) / 3),
        "utilization": 1.0,
        "decode_moments": [11, 22.0],
        "memory": {"weight_gb": 2.0},
        "speculative": {"accept_length": 2.5, "accept_rate": pytest.approx(0.6)},
        "disaggregation": {"mode": "null", "kv_transfer_latency_ms": 3.0},
        "odd": [1],
        "lists": [1, "a"],
        "flag": True,
        "only": 1,
        "none": None,
    }


@pytest.mark.parametrize("weights", [(None, 300), (0, 0), ("a", "b"), (-1, 2), (-1e300, 1e300)])
def test_without_weights_it_is_the_plain_mean(weights: tuple[object, object]) -> None:
    """What cannot be weighed is not."""
    ranks = [
        {"cache_hit_rate": value, "num_running_reqs": each}
        for value, each in zip((0.5, 0.1), weights, strict=True)
    ]
    assert one_rank(ranks, 0)["cache_hit_rate"] == pytest.approx(0.3)


@pytest.mark.parametrize(
    "large", [1e300, -1e300, 10**300, 5e-324], ids=["+", "-", "whole", "least"]
)
def test_no_figure_is_infinite(large: float) -> None:
    """However large the figures of two ranks are: JSON has no word for what would come of it."""
    names = ("token_usage", "cache_hit_rate", "num_running_reqs", "max_total_num_tokens", "x")
    rank: dict[str, object] = {**dict.fromkeys(names, large), "decode_moments": [large]}
    json.dumps(one_rank([rank, dict(rank)] * 50, 0), allow_nan=False)


@pytest.mark.parametrize("name", ["utilization", "cache_hit_rate", "token_usage"])
def test_a_word_has_one_rule(name: str) -> None:
    """Whether it is read here or on the page of metrics."""
    figures = [
        {"num_running_reqs": 3, "max_total_num_tokens": 1000, name: 0.5},
        {"num_running_reqs": 1, "max_total_num_tokens": 4000, name: 0.125},
    ]
    texts = [
        "".join(
            f"# TYPE sglang:{each} gauge\nsglang:{each} {value}\n" for each, value in own.items()
        )
        for own in figures
    ]
    page = one_metrics(dict(zip((SPEC, BASE), texts, strict=True)))
    assert f"sglang:{name} {one_rank(figures, 0)[name]}" in page.splitlines()


def test_older_sums_are_made_anew() -> None:
    """Versions before 0.5.23 had a count of ranks, and their sums."""
    sums = [
        {"total_running_reqs": 1, "avg_token_usage": 0.2, "avg_throughput": 1.0},
        {"total_running_reqs": 5, "avg_token_usage": 0.4, "avg_throughput": 2.0},
    ]
    pages = {
        name: page({"a": 1}, dp_rank_count=1, aggregate=each)
        for name, each in zip((SPEC, BASE), sums, strict=True)
    }
    made = one_load(pages)
    assert made["dp_rank_count"] == 2
    assert made["aggregate"] == {
        "total_running_reqs": 6,
        "avg_token_usage": 0.4,
        "avg_throughput": 1.5,
    }


def test_prometheus_has_sglangs_names() -> None:
    """Sections shortened as there; texts and flags are no samples."""
    loads: list[dict[str, object]] = [
        {
            "dp_rank": 0,
            "num_running_reqs": 1,
            "speculative": {"accept_length": 2.5},
            "disaggregation": {"mode": "null", "decode_prealloc_queue_reqs": 0},
            "queues": {"waiting": 3},
            "flag": True,
            "nothing": None,
        },
        {"dp_rank": 1, "num_running_reqs": 4},
    ]
    assert prometheus(loads).splitlines() == [
        "# TYPE sglang_num_running_reqs gauge",
        'sglang_num_running_reqs{dp_rank="0"} 1',
        'sglang_num_running_reqs{dp_rank="1"} 4',
        "# TYPE sglang_spec_accept_length gauge",
        'sglang_spec_accept_length{dp_rank="0"} 2.5',
        "# TYPE sglang_disagg_decode_prealloc_queue_reqs gauge",
        'sglang_disagg_decode_prealloc_queue_reqs{dp_rank="0"} 0',
        "# TYPE sglang_queues_waiting gauge",
        'sglang_queues_waiting{dp_rank="0"} 3',
    ]
    assert prometheus([]) == "\n"
