"""The demo stack: who serves, who reaches whom, what watches, the first calibration, its end."""

import asyncio
import json
import time
from collections.abc import Iterator

import httpx2
import openai
import pytest
import yaml
from openai.types.chat import ChatCompletionMessageParam

from tests.deploy.docker.conftest import IMAGE
from tests.deploy.docker.stack import ADMIN_TOKEN, ROOT, Stack
from tests.deploy.docker.traffic import Clients, ask, served_by

ALERT_SECONDS = 240.0
"""A scrape (15 s), the minute that the alert waits, an evaluation, and a slow machine."""
CONTAINERS = {"spec", "base", "specswitch", "prometheus", "alertmanager", "grafana"}


def get(url: str) -> object:
    """JSON from a server on Docker's bridge."""
    return httpx2.get(url, timeout=10, trust_env=False).raise_for_status().json()


@pytest.fixture(autouse=True)
def as_it_was(stack: Stack) -> None:
    """Each test begins with both engines in service."""
    stack.settled()


# What is there --------------------------------------------------------------------------------


def test_everything_is_healthy(stack: Stack) -> None:
    """`up --wait` has waited for six containers, none of which was restarted."""
    found = [json.loads(line) for line in stack.compose("ps", "--format", "json").splitlines()]
    assert {each["Service"] for each in found} == CONTAINERS
    assert {each["Health"] for each in found} == {"healthy"}
    assert {stack.inspect(name, "{{.RestartCount}}") for name in CONTAINERS} == {"0"}


def test_the_official_client(stack: Stack) -> None:
    """Whole answers and streams, and models."""
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="any", max_retries=0) as client:
        (model,) = client.models.list().data
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello."}]
        whole = client.chat.completions.create(model=model.id, messages=messages, max_tokens=8)
        assert whole.choices[0].message.content
        pieces = list(
            client.chat.completions.create(
                model=model.id, messages=messages, max_tokens=8, stream=True
            )
        )
        assert pieces[-1].choices[0].finish_reason in {"stop", "length"}


async def test_it_switches(stack: Stack) -> None:
    """One at a time goes to spec; of many at once most go to base."""
    stack.until(lambda: served_by(ask(stack)) == (200, "spec", "mode"), "spec serves")
    async with Clients(stack, tokens=32, count=24) as clients:
        await clients.ended()
    assert all(stream.whole for stream in clients.streams)
    assert sum(stream.upstream == "base" for stream in clients.streams) > 12


def test_the_admin_listener_asks_for_the_token(stack: Stack) -> None:
    """Whoever is on this machine may read; a change needs the token, and a name that is known."""
    url = f"{stack.admin_url}/admin/control"
    assert httpx2.put(url, json={"control": "base"}, trust_env=False).status_code == 401
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}", "host": "elsewhere.example"}
    answer = httpx2.put(url, json={"control": "base"}, headers=headers, trust_env=False)
    assert answer.status_code == 403
    assert stack.state()["control"] == "auto"


def test_who_reaches_the_engines(stack: Stack) -> None:
    """Grafana and Alertmanager do not, by name or by address; specswitch does."""
    address = stack.address("spec")
    for service in ("grafana", "alertmanager"):
        for host in ("spec", address):
            assert reach(stack, service, host) == "no\n", (service, host)
    for service in ("specswitch", "prometheus"):
        assert reach(stack, service, "spec") == "yes\n", service


def reach(stack: Stack, service: str, host: str) -> str:
    """Whether an engine can be reached from a container's networks, by a program of our own."""
    code = (
        "import socket\n"
        f"try: socket.create_connection(({host!r}, 30001), 3)\n"
        "except OSError: print('no')\n"
        "else: print('yes')\n"
    )
    networks = f"container:{stack.container(service)}"
    words = ("run", "--rm", "--network", networks, "--entrypoint", "python", IMAGE, "-c", code)
    return stack.engine.run(*words).stdout


# What watches ---------------------------------------------------------------------------------


@pytest.fixture
def prometheus(stack: Stack) -> str:
    """Where Prometheus is."""
    return f"http://{stack.address('prometheus')}:9090"


def targets(prometheus: str) -> dict[tuple[str, str | None], str]:
    """Health by job and upstream."""
    found = get(f"{prometheus}/api/v1/targets?state=active")
    assert isinstance(found, dict)
    return {
        (each["labels"]["job"], each["labels"].get("upstream")): each["health"]
        for each in found["data"]["activeTargets"]
    }


def test_prometheus_reaches_all(stack: Stack, prometheus: str) -> None:
    """specswitch, both engines apart, and itself are up."""
    up = {("specswitch", None), ("sglang", "spec"), ("sglang", "base"), ("prometheus", None)}
    stack.until(
        lambda: targets(prometheus) == dict.fromkeys(up, "up"),
        f"all targets are up, as {targets(prometheus)}",
    )


def test_prometheus_has_the_rules(prometheus: str) -> None:
    """All that are in deploy/prometheus, and each can be evaluated."""
    found = get(f"{prometheus}/api/v1/rules")
    assert isinstance(found, dict)
    loaded = [rule for group in found["data"]["groups"] for rule in group["rules"]]
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    written = [
        rule.get("alert") or rule["record"]
        for file in config["rule_files"]
        for group in yaml.safe_load((ROOT / "deploy/prometheus" / file).read_text())["groups"]
        for rule in group["rules"]
    ]
    assert sorted(rule["name"] for rule in loaded) == sorted(written)
    assert [rule["name"] for rule in loaded if rule["health"] == "err"] == []


def alerts(stack: Stack) -> Iterator[tuple[str, str | None]]:
    """Name and upstream of what Alertmanager knows of."""
    found = get(f"http://{stack.address('alertmanager')}:9093/api/v2/alerts")
    assert isinstance(found, list)
    for each in found:
        yield each["labels"]["alertname"], each["labels"].get("upstream")


def test_an_alert_reaches_alertmanager(stack: Stack) -> None:
    """An engine is stopped: somebody is told, and meanwhile every request is served."""
    stack.compose("stop", "--timeout", "5", "spec")
    told, deadline = False, time.monotonic() + ALERT_SECONDS
    while not told:
        assert served_by(ask(stack))[:2] == (200, "base")
        assert time.monotonic() < deadline, list(alerts(stack))
        told = ("SpecswitchUpstreamEjected", "spec") in alerts(stack)
        time.sleep(1)  # noqa: TID251 - between two looks, and no loop to hold up


def test_grafana_finds_what_is_mounted(stack: Stack) -> None:
    """The stand-in ends where a mount, a password or a data source is wrong; this one runs."""
    assert get(f"http://{stack.address('grafana')}:3000/api/health") == {"database": "ok"}


# The first start ------------------------------------------------------------------------------

ATTEMPTS = 4
QUICK = ("--concurrency=1,8", "--output-tokens=48", "--long-tokens=0", "--no-contention")


def test_the_first_calibration(stack: Stack) -> None:
    """Until there is one it serves from base and says so; then it goes by it without a restart."""
    stack.up("specswitch", DEMO_CROSSOVER="0")
    try:
        stack.until(lambda: stack.health("base") == "healthy", "base is healthy")
        assert served_by(ask(stack)) == (200, "base", "uncalibrated")
        assert "there is no calibration" in stack.compose("logs", "specswitch")
        assert stack.state()["calibration"] is None
        before = stack.inspect("specswitch", "{{.State.StartedAt}}")

        service = json.loads(stack.compose("--profile", "*", "config", "--format", "json"))
        words = [*service["services"]["calibrate"]["command"], *QUICK]
        for _ in range(ATTEMPTS):
            done = stack.compose("run", "--rm", "calibrate", *words, check=False)
            if "less busy" not in done:  # it does not believe what it measured beside other work
                break
        assert "goes by it now" in done, done
        found = stack.state()["calibration"]
        assert isinstance(found, dict), done
        assert found["valid"], done
        assert stack.inspect("specswitch", "{{.State.StartedAt}}") == before
        if found["verdict"] == "crossover":  # which a machine that is busy may not show
            stack.until(lambda: served_by(ask(stack))[1:] == ("spec", "mode"), "spec serves")
    finally:
        stack.up("specswitch", DEMO_CROSSOVER="3.1")


# Stopping -------------------------------------------------------------------------------------


async def test_stopping_specswitch_cuts_no_stream(stack: Stack) -> None:
    """`docker compose stop` while fifty stream: each has its end, and the exit code is 0."""
    async with Clients(stack, tokens=64, count=50) as clients:
        await clients.begun()
        assert not any(stream.whole for stream in clients.streams)
        await asyncio.to_thread(stack.compose, "stop", "specswitch")
        await clients.ended()
    assert [stream for stream in clients.streams if not stream.whole] == []
    assert stack.inspect("specswitch", "{{.State.ExitCode}}") == "0"
