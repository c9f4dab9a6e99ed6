"""What a bench is asked for: endpoints by name, options that go together, the plan they give."""

from pathlib import Path

import pytest

from proxy.errors import ConfigError, SpecswitchError
from proxy.tools.bench.load import Shot, Workload
from proxy.tools.bench.plan import Endpoint, Options, conditions, endpoints, plan, planned_seconds
from proxy.tools.prompts import Prompt

ONE = (Endpoint(name="a", url="http://a"),)


def test_endpoints_by_name() -> None:
    """A name is what stands before the first equals sign; without one the address is the name."""
    found = endpoints(
        ["ours=http://x:1", "http://y:2/", "http://z/?a=b"], ["ours=http://x:9"], ["k", "ours=own"]
    )
    assert [one.name for one in found] == ["ours", "y:2", "z/?a=b"]
    assert [one.url for one in found] == ["http://x:1", "http://y:2/", "http://z/?a=b"]
    assert [one.admin_url for one in found] == ["http://x:9", None, None]
    assert [one.api_key for one in found] == ["own", "k", "k"]


def test_a_key_may_hold_an_equals_sign() -> None:
    """What stands before it is no endpoint, so it is a part of the key; and no key is shown."""
    (one,) = endpoints(["a=http://x"], [], ["abc=="])
    assert one.api_key == "abc=="
    assert "abc" not in repr(one)


@pytest.mark.parametrize(
    ("urls", "admin", "path"),
    [
        (["a=http://x", "a=http://y"], [], "--url"),
        (["a=http://me:secret@x"], [], "--url"),
        (["a=http://x"], ["b=http://y"], "--admin-url"),
    ],
)
def test_endpoints_that_are_none(urls: list[str], admin: list[str], path: str) -> None:
    """Twice the same name, or an admin listener of nobody, is refused by the option."""
    with pytest.raises(ConfigError) as raised:
        endpoints(urls, admin, [])
    assert raised.value.findings[0][0] == path


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"endpoints": (), "rates": (1.0,)}, "--url"),
        ({"endpoints": ONE}, "--rate"),
        ({"endpoints": ONE, "rates": (1.0, 0.0)}, "--rate"),
        ({"endpoints": ONE, "rates": (float("nan"),)}, "--rate"),
        ({"endpoints": ONE, "rates": (float("inf"),)}, "--rate"),
        ({"endpoints": ONE, "rates": (1.0, 1.0)}, "--rate"),
        ({"endpoints": ONE, "rates": (1.0,), "trace": Path("x")}, "--trace"),
    ],
)
def test_options_that_do_not_go_together(fields: dict[str, object], path: str) -> None:
    """The finding names the option."""
    with pytest.raises(ConfigError) as raised:
        Options(**fields)  # type: ignore[arg-type]  # the test's own names
    assert [finding[0] for finding in raised.value.findings] == [path]


def test_a_level_for_each_rate() -> None:
    """Every rate has all its requests, in the rounds that were asked for, the same every time."""
    options = Options(
        endpoints=ONE, rates=(2.0, 8.0), requests=50, rounds=3, workload=Workload.LADDER
    )
    levels = plan(options)
    assert [level.rate for level in levels] == [2.0, 8.0]
    assert [sum(map(len, level.rounds)) for level in levels] == [50, 50]
    assert [len(level.rounds) for level in levels] == [3, 3]
    assert levels == plan(options)
    slow, fast = (sum(part[-1].at for part in level.rounds) for level in levels)
    assert 10 < slow < 50
    assert fast < slow / 2


def test_all_at_once_is_one_round() -> None:
    """Nobody takes turns then."""
    (level,) = plan(Options(endpoints=ONE, rates=(2.0,), requests=9, together=True))
    assert [len(part) for part in level.rounds] == [9]


def test_a_trace_file(tmp_path: Path) -> None:
    """Its times and lengths are kept, or put to a rate; there may be fewer requests than asked."""
    file = tmp_path / "trace.csv"
    file.write_text("at,prompt_tokens,output_tokens\n0,2000,7\n1.5,10,8\n4,30,9\n")
    recorded, faster = plan(
        Options(endpoints=ONE, workload=Workload.TRACE, trace=file, rounds=1)
    ) + plan(Options(endpoints=ONE, workload=Workload.TRACE, trace=file, rounds=1, rates=(5.0,)))
    assert recorded.rate is None
    shots = recorded.rounds[0]
    assert [shot.at for shot in shots] == [0.0, 1.5, 4.0]
    assert [shot.prompt_tokens for shot in shots] == [2000, 10, 30]
    assert [shot.output_tokens for shot in shots] == [7, 8, 9]
    assert faster.rounds[0][-1].at == pytest.approx(0.4)


def test_a_trace_with_a_bad_line(tmp_path: Path) -> None:
    """It is named by its number, before anything is sent."""
    file = tmp_path / "trace.csv"
    file.write_text("at,prompt_tokens,output_tokens\n0,20,7\n1.5,x,8\n")
    with pytest.raises(SpecswitchError, match="3"):
        plan(Options(endpoints=ONE, workload=Workload.TRACE, trace=file))


def test_the_trace_that_comes_along() -> None:
    """Without a file there is one."""
    (level,) = plan(Options(endpoints=ONE, workload=Workload.TRACE, requests=100, rates=(4.0,)))
    assert sum(map(len, level.rounds)) == 100


def test_prompts_of_a_file(tmp_path: Path) -> None:
    """They take the place of those that are built in; a bad line is named."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "hello", "max_tokens": 3}\n')
    options = Options(endpoints=ONE, rates=(2.0,), requests=4, prompts=file)
    assert {shot.output_tokens for part in plan(options)[0].rounds for shot in part} == {3}
    file.write_text("{}\n")
    with pytest.raises(SpecswitchError, match="line 1"):
        plan(options)


def test_the_conditions_hold_no_secret() -> None:
    """They go into a report that is passed on."""
    key = Endpoint(name="a", url="http://a", api_key="sk-secret")
    told = conditions(Options(endpoints=(key,), rates=(2.0,), trace=None))
    assert "sk-secret" not in str(told)
    assert told["rates"] == [2.0]
    assert told["trace"] is None
    for trace, name in ((Path("x/y.csv"), "y.csv"), (None, "built in")):
        options = Options(endpoints=ONE, workload=Workload.TRACE, trace=trace)
        assert conditions(options)["trace"] == name


def test_a_request_stands_for_the_time_since_the_one_before() -> None:
    """So a slow rate weighs more than a fast one; a crowd at one moment weighs something, too."""
    prompt = Prompt(({"role": "user", "content": "x"},))
    shots = [Shot(at, prompt, 10) for at in (0.5, 2.0, 2.0)]
    assert list(planned_seconds(shots)) == pytest.approx([0.501, 1.501, 0.001])
    slow, fast = plan(Options(endpoints=ONE, rates=(0.5, 4.0), requests=50, rounds=1))
    seconds = [sum(planned_seconds(level.rounds[0])) for level in (slow, fast)]
    assert seconds == pytest.approx([level.rounds[0][-1].at + 0.05 for level in (slow, fast)])
    assert seconds[0] > 4 * seconds[1]
