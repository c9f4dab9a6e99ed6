"""The metrics of two servers as those of one."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.control.one_metrics import GAUGES, one_metrics
from proxy.core.words import UpstreamName

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
DOCS = Path(__file__).parents[2] / "docs"
RANKS = 'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
KEPT = '{engine_type="unified",model_name="m"}'


def gauge(name: str, value: float | str, labels: str = RANKS) -> str:
    """A family of one gauge."""
    return (
        f"# HELP sglang:{name} h\n# TYPE sglang:{name} gauge\nsglang:{name}{{{labels}}} {value}\n"
    )


def lines(page: str) -> list[str]:
    """The samples of a page, which must be one that Prometheus's own parser takes."""
    list(text_string_to_metric_families(page))
    return [line for line in page.splitlines() if line and not line.startswith("#")]


def both(spec: str, base: str) -> list[str]:
    """What is made of two pages."""
    return lines(one_metrics({SPEC: spec, BASE: base}))


@pytest.mark.parametrize(
    ("name", "spec", "base", "made"),
    [
        ("num_running_reqs", 3, 4, "7.0"),
        ("num_queue_reqs", 0, 2, "2.0"),
        ("gen_throughput", 1.5, 2.25, "3.75"),
        ("max_total_num_tokens", 1000, 3000, "4000.0"),
        ("context_len", 4096, 8192, "4096.0"),
        ("page_size", 1, 64, "1.0"),
        ("utilization", 0.25, 0.5, "0.5"),
        ("spec_accept_length", 2.5, 0.0, "2.5"),
        ("spec_num_steps", 3, 0, "3.0"),
    ],
)
def test_a_gauge_by_its_rule(name: str, spec: float, base: float, made: str) -> None:
    """One series, with the labels of a single server but for its ranks."""
    assert both(gauge(name, spec), gauge(name, base)) == [f"sglang:{name}{KEPT} {made}"]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("process_cpu_seconds_total", 'component="scheduler"'),
        ("hicache_backup_tokens_total", 'pool="kv"'),
        ("prefill_delayer_outcomes_total", 'output_reason="wait_success"'),
    ],
)
def test_what_a_figure_is_divided_by_stays(name: str, label: str) -> None:
    """Or who asks for one share of it, as of a single server, would find none."""
    page = f"# HELP sglang:{name} h\n# TYPE sglang:{name} counter\nsglang:{name}{{{label}}} 2.0\n"
    assert both(page, page) == [f"sglang:{name}{{{label}}} 4.0"]


@pytest.mark.parametrize("name", ["is_cuda_graph", "new_token_ratio", "startup_time_seconds", "x"])
def test_a_gauge_without_a_rule_is_left_out(name: str) -> None:
    """Its help and type, too."""
    assert one_metrics({SPEC: gauge(name, 1), BASE: gauge(name, 1)}).strip() == ""


@pytest.mark.parametrize(
    "name", ["token_usage", "full_token_usage", "swa_token_usage", "mamba_usage", "utilization"]
)
def test_a_pair_is_as_full_as_the_fuller_of_its_servers(name: str) -> None:
    """Base does not overflow to spec: that spec is empty helps nobody. The room is all of it."""
    spec = gauge("max_total_num_tokens", 100_000) + gauge(name, 0.0)
    base = gauge("max_total_num_tokens", 100_000) + gauge(name, 1.0)
    assert both(spec, base) == [
        f"sglang:max_total_num_tokens{KEPT} 200000.0",
        f"sglang:{name}{KEPT} 1.0",
    ]


def queue(page: str) -> list[str]:
    """The samples of the queue."""
    return [line.removeprefix("sglang:num_queue_reqs") for line in lines(page) if "queue" in line]


def test_what_waits_before_the_servers_is_queued() -> None:
    """The pair's queue is at its door: at base there is none while specswitch holds it back."""
    spec, base = gauge("num_queue_reqs", 1), gauge("num_queue_reqs", 2)
    assert queue(one_metrics({SPEC: spec, BASE: base}, waiting=10)) == [f"{KEPT} 13.0"]
    assert queue(one_metrics({SPEC: spec}, waiting=10)) == [f"{KEPT} 11.0"]
    assert queue(one_metrics({SPEC: spec, BASE: ""}, waiting=10)) == [f"{KEPT} 11.0"]
    assert one_metrics({BASE: gauge("num_running_reqs", 1)}, waiting=10).count("queue") == 0


def test_what_waits_is_in_the_total_of_base() -> None:
    """Not in a queue of one priority, nor once more in spec's where that is another series."""
    name = "sglang:num_queue_reqs"
    base = f'# TYPE {name} gauge\n{name}{{priority="2"}} 2\n{name}{{priority=""}} 3\n'
    spec = f'# TYPE {name} gauge\n{name}{{model_name="other"}} 1\n'
    assert queue(one_metrics({SPEC: spec, BASE: base}, waiting=10)) == [
        '{model_name="other"} 1.0',
        '{priority="2"} 2.0',
        '{priority=""} 13.0',
    ]


def test_hits_are_weighed_by_what_runs() -> None:
    """The rate of a server that does nothing is that of some time ago."""
    spec = gauge("num_running_reqs", 3) + gauge("cache_hit_rate", 0.5)
    base = gauge("num_running_reqs", 1) + gauge("cache_hit_rate", 0.1)
    assert f"sglang:cache_hit_rate{KEPT} 0.4" in both(spec, base)


@pytest.mark.parametrize(
    "running",
    [
        gauge("num_running_reqs", 0),
        gauge("num_running_reqs", "NaN"),
        gauge("num_running_reqs", "+Inf"),
        gauge("num_running_reqs", -1),
        "",
    ],
)
def test_hits_that_cannot_be_weighed_are_the_plain_mean(running: str) -> None:
    """Nothing runs, or it is not known how much."""
    found = both(running + gauge("cache_hit_rate", 0.75), running + gauge("cache_hit_rate", 0.25))
    assert f"sglang:cache_hit_rate{KEPT} 0.5" in found


def test_no_weight_is_too_large() -> None:
    """Of the figure itself only the share counts."""
    spec = gauge("num_running_reqs", 1e308) + gauge("cache_hit_rate", 1e300)
    base = gauge("num_running_reqs", 1e308) + gauge("cache_hit_rate", 3e300)
    assert f"sglang:cache_hit_rate{KEPT} 2e+300" in both(spec, base)


def test_what_is_specs_alone_is_not_made_up() -> None:
    """Base has zeros there."""
    assert lines(one_metrics({BASE: gauge("spec_accept_length", 0.0)})) == []
    spec = gauge("spec_accept_length", 2.0, RANKS + ',dp_rank="0"')
    more = f'sglang:spec_accept_length{{{RANKS},dp_rank="1"}} 4.0\n'
    assert lines(one_metrics({SPEC: spec + more})) == [f"sglang:spec_accept_length{KEPT} 3.0"]


def test_counters_are_added_up() -> None:
    """By the labels that divide them; others than SGLang's are left out."""
    spec = (
        "# TYPE sglang:num_requests_total counter\n"
        'sglang:num_requests_total{is_streaming="true",model_name="m"} 3.0\n'
        "# TYPE python_gc_total counter\npython_gc_total 5.0\n"
    )
    base = (
        "# TYPE sglang:num_requests_total counter\n"
        'sglang:num_requests_total{is_streaming="true",model_name="m"} 4.0\n'
        'sglang:num_requests_total{is_streaming="false",model_name="m"} 1.0\n'
    )
    assert both(spec, base) == [
        'sglang:num_requests_total{is_streaming="true",model_name="m"} 7.0',
        'sglang:num_requests_total{is_streaming="false",model_name="m"} 1.0',
    ]


def histogram(*bounds: tuple[str, float]) -> str:
    """A histogram with these counts at these bounds."""
    name = "sglang:queue_time_seconds"
    made = [f'{name}_bucket{{{RANKS},le="{bound}"}} {count}' for bound, count in bounds]
    last = bounds[-1][1]
    made += [f"{name}_sum{{{RANKS}}} 1.5", f"{name}_count{{{RANKS}}} {last}"]
    return f"# TYPE {name} histogram\n" + "\n".join(made) + "\n"


def test_histograms_are_added_up() -> None:
    """Where both have the bound: a count that only one adds to would not grow with the bounds."""
    spec = histogram(("0.1", 1), ("0.5", 2), ("1.0", 4), ("+Inf", 5))
    base = histogram(("0.1", 10), ("0.7", 15), ("1.0", 20), ("+Inf", 20))
    name = "sglang:queue_time_seconds"
    labels = KEPT.removesuffix("}")
    bucket = f'{name}_bucket{{engine_type="unified",le="%s",model_name="m"}} %s'
    assert both(spec, base) == [
        bucket % ("0.1", "11.0"),
        bucket % ("1.0", "24.0"),
        bucket % ("+Inf", "25.0"),
        f"{name}_sum{labels}}} 3.0",
        f"{name}_count{labels}}} 25.0",
    ]
    assert len(lines(one_metrics({SPEC: spec}))) == 6


def test_workers_tell_of_the_same_requests() -> None:
    """The lowest is heard, in whichever order they come; data-parallel ranks are added up."""

    def ranks(tp: int, dp: int) -> str:
        return f'dp_rank="{dp}",model_name="m",moe_ep_rank="{tp}",pp_rank="0",tp_rank="{tp}"'

    page = gauge("num_running_reqs", 7, ranks(1, 0))
    for tp, dp, value in ((0, 0, 5), (2, 1, 11), (3, 1, 13)):
        page += f"sglang:num_running_reqs{{{ranks(tp, dp)}}} {value}\n"
    assert lines(one_metrics({BASE: page})) == ['sglang:num_running_reqs{model_name="m"} 16.0']


def test_what_an_operator_has_added_is_left_out() -> None:
    """`--extra-metric-labels` tell servers apart; here they are one."""
    spec = gauge("num_running_reqs", 1, RANKS + ',backend="spec"')
    base = gauge("num_running_reqs", 2, RANKS + ',backend="plain"')
    base += f'sglang:num_running_reqs{{{RANKS},backend="more"}} 4\n'
    assert both(spec, base) == [f"sglang:num_running_reqs{KEPT} 7.0"]


def test_a_cache_is_told_as_labels() -> None:
    """For schedulers by prefixes: all pages of the pair, and the size of the smaller."""
    spec = gauge("page_size", 16) + gauge("num_pages", 1000)
    base = gauge("num_pages", 500) + gauge("page_size", 16)
    assert both(spec, base)[-1] == (
        'sglang:cache_config_info{model_name="m",num_pages="1500",page_size="16"} 1.0'
    )
    assert not any("cache_config" in line for line in both(gauge("page_size", 1), ""))


@pytest.mark.parametrize("odd", ["NaN", "+Inf", "-Inf"])
@pytest.mark.parametrize("name", ["page_size", "num_pages"])
def test_a_cache_of_no_size_is_not_told(name: str, odd: str) -> None:
    """Whoever reads those labels reads whole numbers; either server's figure may be odd."""
    well = gauge("page_size", 16) + gauge("num_pages", 1000)
    other = "num_pages" if name == "page_size" else "page_size"
    bad = gauge(name, odd) + gauge(other, 16)
    for pages in ((well, bad), (bad, well)):
        assert not any("cache_config" in line for line in both(*pages))


def test_a_label_may_have_256_characters() -> None:
    """What has a longer one is left out; labels that are not kept may have any length."""
    long = "m" * 256
    page = gauge("num_running_reqs", 1, f'model_name="{long}",other="{"x" * 1000}"')
    page += f'sglang:num_running_reqs{{model_name="{long}m"}} 2\n'
    assert lines(one_metrics({SPEC: page})) == [
        f'sglang:num_running_reqs{{model_name="{long}"}} 1.0'
    ]


def test_notes_are_comments() -> None:
    """A scraper passes over them."""
    page = one_metrics({SPEC: gauge("num_running_reqs", 1)}, ["base answers 404"])
    assert page.startswith("# specswitch: base answers 404\n# HELP sglang:num_running_reqs h\n")
    assert lines(page) == [f"sglang:num_running_reqs{KEPT} 1.0"]


@pytest.mark.parametrize(
    ("value", "made"),
    [("NaN", "NaN"), ("+Inf", "+Inf"), ("-Inf", "-Inf"), ("1e3", "1000.0"), ("3 1700000", "3.0")],
)
def test_odd_values(value: str, made: str) -> None:
    """As Prometheus writes them, with a time stamp or without."""
    found = one_metrics({SPEC: gauge("num_running_reqs", value)}).splitlines()
    assert found[-1] == f"sglang:num_running_reqs{KEPT} {made}"


@pytest.mark.parametrize("name", ["sglang:a_total", 'sglang:a_total{model_name="a b,}{#"}'])
@pytest.mark.parametrize("stamp", ["", " 1700000"])
def test_an_exemplar_is_no_value(name: str, stamp: str) -> None:
    """It stands behind it, with labels and a value of its own."""
    page = f'# TYPE sglang:a_total counter\n{name} 3{stamp} # {{trace_id="x}}"}} 9.0 1.5\n'
    assert lines(one_metrics({SPEC: page})) == [f"{name} 3.0"]


@pytest.mark.parametrize("odd", ["\u2028", "\u0085", "\x0c", "\x1c"])
def test_a_line_ends_at_a_line_feed_only(odd: str) -> None:
    """A label holds what it likes; a line may end as lines of HTTP do."""
    page = gauge("num_running_reqs", 1, f'model_name="a{odd}b"').replace("\n", "\r\n")
    made = one_metrics({SPEC: page})
    assert made.split("\n")[:3] == [
        "# HELP sglang:num_running_reqs h",
        "# TYPE sglang:num_running_reqs gauge",
        f'sglang:num_running_reqs{{model_name="a{odd}b"}} 1.0',
    ]


@pytest.mark.parametrize(
    "line",
    [
        "sglang:num_running_reqs",
        "sglang:num_running_reqs ",
        "sglang:num_running_reqs{} x",
        "sglang:num_running_reqs{",
        'sglang:num_running_reqs{a="}"',
        'sglang:num_running_reqs{a="} 3 # {} 4',
        "# sglang:num_running_reqs 4",
        "sglang:num_running_reqs{a=b} 1x",
    ],
)
def test_what_is_no_sample_says_nothing(line: str) -> None:
    """A page may be broken off or odd."""
    page = gauge("num_running_reqs", 1) + line + "\n"
    assert lines(one_metrics({SPEC: page})) == [f"sglang:num_running_reqs{KEPT} 1.0"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (r'model_name="a\"b,}{\\"', r'{model_name="a\"b,}{\\"}'),
        ('model_name="a b"', '{model_name="a b"}'),
        ("", ""),
        ('tp_rank="x"', ""),
    ],
)
def test_labels_may_hold_anything(text: str, kept: str) -> None:
    """Quotes, braces, spaces; they are written as they were."""
    assert lines(one_metrics({SPEC: gauge("num_running_reqs", 1, text)})) == [
        f"sglang:num_running_reqs{kept} 1.0"
    ]


def test_a_sample_without_labels() -> None:
    """Has none afterwards."""
    page = "# TYPE sglang:cpu_total counter\nsglang:cpu_total 2.5\n"
    assert both(page, page) == ["sglang:cpu_total 5.0"]


def test_a_name_of_two_kinds_is_the_first_ones() -> None:
    """A count and a gauge cannot be one."""
    counted = "# TYPE sglang:num_queue_reqs counter\nsglang:num_queue_reqs 2.0\n"
    assert both(gauge("num_queue_reqs", 1), counted) == [f"sglang:num_queue_reqs{KEPT} 1.0"]


def test_every_rule_is_on_the_page() -> None:
    """docs/endpoints.md names each gauge that passes, or the like of it, and invents none."""
    page = (DOCS / "endpoints.md").read_text(encoding="utf-8")
    text = page.partition("## Metrics of the pair")[2].partition("\n## ")[0]
    table = text.partition("| gauge | rule |")[2].partition("\n\n")[0]
    told = {name.replace("*", ".*") for name in re.findall(r"`([\w*]+)`", table)}
    assert told
    for pattern in told:
        assert any(re.fullmatch(pattern, name) for name in GAUGES), pattern
