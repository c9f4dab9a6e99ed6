"""The pod of deploy/kubernetes: launch order, the engines' commands, what specswitch is given.

Where it can be, it is held to docker-compose.yml, whose stack is really run.
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from proxy import __version__
from proxy.cli import main
from proxy.config import load
from proxy.errors import ConfigError
from tests.deploy.docker.composed import valued
from tests.deploy.docker.conftest import SECRETS as COMPOSE_SECRETS
from tests.deploy.docker.stack import rendered as composed
from tests.deploy.rendering import (
    FOLDER,
    ROOT,
    Node,
    Rendered,
    at,
    copied,
    environment,
    items,
    mapping,
    number,
    with_components,
    words,
)

ENGINES = ("spec", "base")
ENGINE_STOPS = 30.0
"""Seconds for an idle engine to stop, as its stop_grace_period in docker-compose.yml."""
EXAMPLE = FOLDER / "example" / "engines.env"
STUB = """#!{python}
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ.get("MODEL")]))
"""
"""In place of the engine's Python: says how it was called."""
SETTINGS = """
MODEL=org/model
DRAFT_MODEL='org/draft'
SERVED_MODEL_NAME=name
DTYPE=float16
CONTEXT_LENGTH=4096
TP_SIZE=2
SPEC_ALGORITHM=EAGLE
SPEC_NUM_STEPS=5
SPEC_EAGLE_TOPK=2
SPEC_NUM_DRAFT_TOKENS=6
SPEC_MEM_FRACTION=0.4
BASE_MEM_FRACTION=0.6
SPEC_MAX_TOTAL_TOKENS=1000
BASE_MAX_TOTAL_TOKENS=2000
SPEC_MAX_RUNNING=7
BASE_MAX_RUNNING=8
SPEC_EXTRA_ARGS='--chat-template "a b.jinja" --mem 1'
BASE_EXTRA_ARGS="--chat-template 'a b.jinja'"
"""
"""Every key that an engine's command reads, with values that are nobody's default."""


@pytest.fixture(scope="module")
def claim(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    """The pod that claims its GPUs."""
    return Rendered.of(with_components(copied(tmp_path_factory.mktemp("claim")), "claim"))


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    """The pod that is given them by the device plugin."""
    return Rendered.of(with_components(copied(tmp_path_factory.mktemp("plugin")), "plugin"))


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    """The pod with its engines scraped."""
    mine = copied(tmp_path_factory.mktemp("everything"))
    return Rendered.of(with_components(mine, "claim", "watch", "engine-metrics"))


@pytest.fixture(scope="module")
def demo() -> Rendered:
    """The pod without a GPU."""
    return Rendered.of(FOLDER / "demo")


# The order --------------------------------------------------------------------------------------


def test_one_pod_at_a_time(claim: Rendered) -> None:
    """Two of them would want the same memory."""
    spec = mapping(claim.named("Deployment", "specswitch"), "spec")
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("name", ["claim", "demo"])
def test_spec_starts_first_and_specswitch_last(request: pytest.FixtureRequest, name: str) -> None:
    """Both engines are sidecars, and each is waited for by a question that costs it no token."""
    found: Rendered = request.getfixturevalue(name)
    assert [*found.containers()] == ["spec", "base", "specswitch"]
    for engine, port in zip(ENGINES, (30001, 30000), strict=True):
        container = found.containers()[engine]
        assert container["restartPolicy"] == "Always"
        asked = " ".join(words(container, "startupProbe", "exec", "command"))
        assert re.findall(r"127\.0\.0\.1:(\d+)(/\w+)", asked) == [(str(port), "/ready")]
        assert "livenessProbe" not in container
        assert "readinessProbe" not in container


def test_there_is_time_to_start(claim: Rendered) -> None:
    """It counts as failed only after both engines had all the time that they are let."""
    probes = [mapping(claim.containers()[name], "startupProbe") for name in ENGINES]
    allowed = sum(
        number(each, "periodSeconds") * number(each, "failureThreshold") for each in probes
    )
    deadline = number(claim.named("Deployment", "specswitch"), "spec", "progressDeadlineSeconds")
    assert deadline > allowed


def test_there_is_time_to_stop(claim: Rendered) -> None:
    """preStop, the whole drain, and then the engines one after the other."""
    drain = load(file=None, env={}, overrides={}).timeouts.drain
    waits = number(claim.containers()["specswitch"], "lifecycle", "preStop", "sleep", "seconds")
    grace = number(claim.pod, "terminationGracePeriodSeconds")
    assert grace >= waits + drain + 2 * ENGINE_STOPS
    told = re.search(r"must be (\d+) more", (FOLDER / "base" / "specswitch.toml").read_text())
    assert told is not None
    assert grace >= drain + float(told[1])
    assert float(told[1]) >= waits + ENGINE_STOPS


def test_an_engine_that_is_away_does_not_close_the_door(claim: Rendered) -> None:
    """A pod with a container that does not run is not ready, and specswitch still serves."""
    assert at(claim.named("Service", "specswitch"), "spec", "publishNotReadyAddresses") is True


def test_probes_of_specswitch(claim: Rendered) -> None:
    """What restarts it asks whether it lives, what sends it work asks whether it can serve."""
    container = claim.containers()["specswitch"]
    paths = {
        kind: at(container, f"{kind}Probe", "httpGet", "path")
        for kind in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    assert container["ports"] == [
        {"name": "endpoint", "containerPort": 8000},
        {"name": "admin", "containerPort": 8001},
    ]


# The engines ------------------------------------------------------------------------------------


def started(container: Node, engines: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run an engine's command, with `engines` as its keys and a stub in place of its Python."""
    file = folder / "engines.env"
    file.write_text(engines)
    stub = folder / "python3"
    stub.write_text(STUB.format(python=sys.executable))
    stub.chmod(0o755)
    given = {
        str(each["name"]): str(each["value"]) for each in items(container, "env") if "value" in each
    }
    (script,) = words(container, "args")
    assert script.count("/etc/engines/engines.env") == 1
    return subprocess.run(  # noqa: S603 - our own words
        [*words(container, "command"), script.replace("/etc/engines/engines.env", str(file))],
        env={"PATH": f"{folder}:/usr/bin:/bin", **given},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )  # fmt: skip


def flags(container: Node, engines: str, folder: Path) -> dict[str, str]:
    """The flags that the engine is started with."""
    done = started(container, engines, folder)
    assert done.returncode == 0, done.stderr
    called, _ = json.loads(done.stdout)
    assert called[:2] == ["-m", "sglang.launch_server"]
    return valued(called)


def of_compose(name: str, engines: str, folder: Path) -> dict[str, str]:
    """The flags that compose starts it with, by the same keys."""
    variables = folder / "compose.env"
    variables.write_text(engines)
    others = {key: value for key, value in COMPOSE_SECRETS.items() if "MODEL" not in key}
    services = composed("docker-compose.yml", environment=others, variables=variables)["services"]
    return valued(words(services[name], "command"))


def planned(folder: Path) -> str:
    """What `specswitch plan` writes over the example."""
    file = folder / "plan.env"
    file.write_text(EXAMPLE.read_text())
    asked = ["plan", "--gpu-memory", "80GiB", "--parameters", "8B", "--env", str(file), "--force"]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    return file.read_text()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("kind", ["example", "settings", "plan"])
def test_engines_are_started_as_compose_starts_them(
    claim: Rendered, name: str, kind: str, tmp_path: Path
) -> None:
    """By the same keys come the same flags, quotes included; only they listen on loopback."""
    text = {"example": EXAMPLE.read_text(), "settings": SETTINGS}.get(kind) or planned(tmp_path)
    found = flags(claim.containers()[name], text, tmp_path)
    wanted = of_compose(name, text, tmp_path)
    assert found.pop("--host") == "127.0.0.1"
    assert wanted.pop("--host") == "0.0.0.0"
    assert found == wanted


@pytest.mark.parametrize("missing", ["MODEL", "DRAFT_MODEL"])
def test_a_missing_model_is_said(claim: Rendered, missing: str, tmp_path: Path) -> None:
    """The container ends at once, and its log names the key and the file."""
    text = re.sub(rf"^{missing}=.*$", "", EXAMPLE.read_text(), flags=re.MULTILINE)
    done = started(claim.containers()["spec"], text, tmp_path)
    assert done.returncode != 0
    assert f"set {missing} in engines.env" in done.stderr


def test_the_example_says_nothing_of_its_own() -> None:
    """Its keys are those of .env.example, and what is commented out stands at the same default."""
    pattern = r"^(?:# )?([A-Z_]+)=(.*)$"
    here = dict(re.findall(pattern, EXAMPLE.read_text(), re.MULTILINE))
    there = dict(re.findall(pattern, (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert set(here) <= set(there)
    for name, value in here.items():
        assert name.endswith("_EXTRA_ARGS") or there[name] == value, name


def test_engines_are_reached_by_nobody_else(claim: Rendered, everything: Rendered) -> None:
    """On the pod's loopback, unless their metrics are wanted; then only by a policy's leave."""
    for name in ENGINES:
        assert not items(claim.containers()[name], "ports")
        assert not any(
            each["name"] == "ENGINE_HOST" for each in items(claim.containers()[name], "env")
        )
        env = items(everything.containers()[name], "env")
        assert {"name": "ENGINE_HOST", "value": "0.0.0.0"} in env
    assert {name: everything.ports()[name] for name in ENGINES} == {"spec": 30001, "base": 30000}


def test_engines_share_their_gpus(claim: Rendered, plugin: Rendered) -> None:
    """Both name one claim, or both ask for as many; specswitch has none."""
    asked = [items(claim.containers()[name], "resources", "claims") for name in ENGINES]
    assert asked[0] == asked[1] == [{"name": "gpus"}]
    template = claim.named("ResourceClaimTemplate", "specswitch-gpus")
    (request,) = items(template, "spec", "spec", "devices", "requests")
    assert at(request, "exactly", "count") == 1
    limits = [mapping(plugin.containers()[name], "resources", "limits") for name in ENGINES]
    assert limits == [{"nvidia.com/gpu": "1"}] * 2
    for found in (claim, plugin):
        assert "nvidia" not in json.dumps(found.containers()["specswitch"])
        assert items(found.pod, "tolerations")


# specswitch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["claim", "demo"])
def test_specswitch_accepts_what_it_is_given(
    request: pytest.FixtureRequest, name: str, tmp_path: Path
) -> None:
    """Variables and file are a configuration, which leads to the ports of the engines."""
    found: Rendered = request.getfixturevalue(name)
    file = tmp_path / "specswitch.toml"
    file.write_text(str(at(found.named("ConfigMap", "specswitch"), "data", "specswitch.toml")))
    config = load(file=file, env=environment(found), overrides={})
    urls = (config.upstreams.spec.url, config.upstreams.base.url)
    assert [(url.host, url.port) for url in urls] == [("127.0.0.1", 30001), ("127.0.0.1", 30000)]
    assert [config.listen.port, config.listen.admin_port] == [8000, 8001]
    assert set(config.auth.api_keys) == ({"ann", "bob"} if name == "claim" else set())


def test_an_empty_token_is_refused(claim: Rendered) -> None:
    """Whoever applies secrets.env.example as it is gets an error that names the token."""
    given = {**environment(claim), "SPECSWITCH_AUTH_ADMIN_TOKEN": ""}
    with pytest.raises(ConfigError) as refused:
        load(file=None, env=given, overrides={})
    assert [path for path, _ in refused.value.findings] == ["SPECSWITCH_AUTH_ADMIN_TOKEN"]


def test_no_variable_comes_from_the_service(claim: Rendered) -> None:
    """What the kubelet makes of a Service's name would be refused, so it is told not to."""
    name = str(at(claim.of_kind("Service")[0], "metadata", "name")).upper()
    given = {**environment(claim), f"{name}_PORT": "tcp://10.96.0.7:8000"}
    with pytest.raises(ConfigError):
        load(file=None, env=given, overrides={})
    assert claim.pod["enableServiceLinks"] is False


def test_the_calibration_stays(claim: Rendered) -> None:
    """The image looks for it on the volume, which belongs to whom it runs as."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    told = re.search(r"SPECSWITCH_POLICY_CALIBRATION=(\S+)/calibration\.json", dockerfile)
    assert told is not None
    mounts = {
        each["mountPath"]: each for each in items(claim.containers()["specswitch"], "volumeMounts")
    }
    assert "readOnly" not in mounts[told[1]]
    (volume,) = [each for each in items(claim.pod, "volumes") if each["name"] == "calibration"]
    assert "persistentVolumeClaim" in volume
    user = re.search(r"^USER (\d+):", dockerfile, re.MULTILINE)
    assert user is not None
    context = mapping(claim.containers()["specswitch"], "securityContext")
    assert int(user[1]) == context["runAsUser"] == at(claim.pod, "securityContext", "fsGroup")


@pytest.mark.parametrize("name", ["claim", "demo"])
def test_specswitch_is_confined(request: pytest.FixtureRequest, name: str) -> None:
    """It may do nothing that it does not need, nor does the pod have an account of the cluster."""
    found: Rendered = request.getfixturevalue(name)
    ours = ["specswitch"] if name == "claim" else [*found.containers()]
    for each in ours:
        context = mapping(found.containers()[each], "securityContext")
        assert context == {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    assert at(found.pod, "securityContext", "seccompProfile") == {"type": "RuntimeDefault"}
    assert found.pod["automountServiceAccountToken"] is False


def test_bounds_of_specswitch(claim: Rendered) -> None:
    """Memory for its bodies twice over and a calibration; of CPU what it asks for, and no quota."""
    resources = mapping(claim.containers()["specswitch"], "resources")
    limits = mapping(resources, "limits")
    assert set(limits) == {"memory"}
    bodies = load(file=None, env={}, overrides={}).limits.max_buffered_bytes
    assert int(str(limits["memory"]).removesuffix("Gi")) * 2**30 >= 2 * bodies + 2**30
    assert "cpu" in mapping(resources, "requests")


def test_versions_are_those_of_compose(claim: Rendered, demo: Rendered) -> None:
    """One version of SGLang and one of specswitch, here and there."""
    services = composed("docker-compose.yml", environment=COMPOSE_SECRETS)["services"]
    for name, container in claim.containers().items():
        assert container["image"] == at(services[name], "image"), name
    ours = f"specswitch:{__version__}"
    assert {str(each["image"]) for each in demo.containers().values()} == {ours}


def test_what_the_components_patch_is_the_engines() -> None:
    """They go by position, so that the first two of the base must be the engines."""
    pod: Mapping[str, object] = yaml.safe_load((FOLDER / "base" / "pod.yaml").read_text())
    found = items(pod, "spec", "template", "spec", "initContainers")
    assert [each["name"] for each in found] == [*ENGINES]
