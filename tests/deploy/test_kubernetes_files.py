"""deploy/kubernetes as it is read: rendered by kustomize, held to the schemas, and whole in itself.

No cluster has run it. The schemas are those of Kubernetes.
"""

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest
import yaml

from proxy.cli import main
from tests.deploy.conftest import program
from tests.deploy.rendering import (
    FOLDER,
    ROOT,
    SECRETS,
    Rendered,
    at,
    copied,
    every,
    items,
    kustomize,
    mapping,
    plain,
    with_components,
    words,
)

VARIANTS = {
    "demo": (),
    "claim": ("claim",),
    "plugin": ("plugin",),
    "everything": ("claim", "watch", "engine-metrics"),
}
VERSIONS = {"demo": ("1.30", "1.37"), "plugin": ("1.30", "1.37"), "claim": ("1.34", "1.37")}
"""The oldest that a variant is for, by docs/kubernetes.md, and the newest with schemas."""
OPERATOR = "monitoring.coreos.com/v1"
APPLIED_BYTES = 256 * 1024
"""What `kubectl apply` can note of an object in its annotations (apimachinery's limit of them)."""


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rendered]:
    """Every way in which it can be put together."""
    found = {"demo": Rendered.of(FOLDER / "demo")}
    for name, components in VARIANTS.items():
        if components:
            mine = copied(tmp_path_factory.mktemp(name))
            found[name] = Rendered.of(with_components(mine, *components))
    return found


@pytest.fixture(params=VARIANTS)
def rendered(request: pytest.FixtureRequest, variants: dict[str, Rendered]) -> Rendered:
    """Each of them."""
    return variants[str(request.param)]


# Schemas --------------------------------------------------------------------------------------


def schema_faults(text: str, version: str, folder: Path) -> str:
    """What the schemas of a version of Kubernetes say, of unknown keys as well."""
    validate = program("kubernetes-validate", "kubernetes-validate of PyPI")
    file = folder / "objects.yaml"
    file.write_text(text)
    done = subprocess.run(  # noqa: S603 - our own words
        [validate, "--strict", "--kubernetes-version", version, str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "version"), [(name, each) for name, both in VERSIONS.items() for each in both]
)
def test_the_schemas_of_kubernetes(
    variants: dict[str, Rendered], name: str, version: str, tmp_path: Path
) -> None:
    """Each object is one of the oldest Kubernetes that it is for, and of the newest."""
    assert schema_faults(variants[name].text, version, tmp_path) == ""


def test_the_schemas_with_every_component(variants: dict[str, Rendered], tmp_path: Path) -> None:
    """So it is with all of them, but for what is the operator's."""
    text = plain(variants["everything"].objects, lambda each: each["apiVersion"] != OPERATOR)
    assert schema_faults(text, "1.37", tmp_path) == ""


@pytest.mark.parametrize(("version", "path"), [("1.30", "preStop"), ("1.33", "resource.k8s.io/v1")])
def test_what_is_newer_than_a_version_is_noticed(
    variants: dict[str, Rendered], version: str, path: str, tmp_path: Path
) -> None:
    """The check would see a key that is misspelt, and a kind that a version does not have."""
    name = "plugin" if path == "preStop" else "claim"
    text = variants[name].text.replace("preStop:", "preStopp:")
    assert path in schema_faults(text, version, tmp_path)


def keys(node: object) -> set[str]:
    """Every key in a mapping, however deep."""
    if isinstance(node, Mapping):
        return {str(key) for key in node} | {each for one in node.values() for each in keys(one)}
    return {each for one in node for each in keys(one)} if isinstance(node, list) else set()


def test_pod_monitors_have_keys_that_were_checked(variants: dict[str, Rendered]) -> None:
    """The operator's schemas are not here, so a key that is new is to be looked up first."""
    for each in variants["everything"].of_kind("PodMonitor"):
        assert each["apiVersion"] == OPERATOR
        assert set(mapping(each, "spec")) == {"selector", "podMetricsEndpoints"}
        for endpoint in items(each, "spec", "podMetricsEndpoints"):
            known = {"port", "path", "interval", "relabelings", "targetLabel", "replacement"}
            assert keys(endpoint) == known
            assert re.fullmatch(r"\d+s", str(endpoint["interval"]))


def test_the_rule_object_is_read_by_prometheus(
    variants: dict[str, Rendered], tmp_path: Path
) -> None:
    """What the operator hands on is a file of rules by promtool, which refuses unknown keys."""
    promtool = program("promtool", "Debian's prometheus")
    (found,) = variants["everything"].of_kind("PrometheusRule")
    assert found["apiVersion"] == OPERATOR
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps(found["spec"]))
    done = subprocess.run(  # noqa: S603 - our own words
        [promtool, "check", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# Whole in itself ------------------------------------------------------------------------------


def test_selectors_find_the_pod(rendered: Rendered) -> None:
    """Whoever selects by labels selects the pod, and everybody does by the same."""
    selectors = [
        *(at(each, "spec", "selector", "matchLabels") for each in rendered.of_kind("Deployment")),
        *(at(each, "spec", "selector") for each in rendered.of_kind("Service")),
        *(
            at(each, "spec", "podSelector", "matchLabels")
            for each in rendered.of_kind("NetworkPolicy")
        ),
        *(
            at(each, "spec", "selector", "matchLabels")
            for kind in ("PodDisruptionBudget", "PodMonitor")
            for each in rendered.of_kind(kind)
        ),
    ]  # fmt: skip
    assert len(selectors) >= 4
    for selector in selectors:
        assert selector
        assert mapping(selector).items() <= rendered.pod_labels.items()


def test_ports_exist(rendered: Rendered) -> None:
    """A port that is meant by its name is one of the pod's, and none is named twice."""
    names = [
        port["name"] for each in rendered.containers().values() for port in items(each, "ports")
    ]
    assert len(names) == len(set(names))
    meant = [
        *(
            each["targetPort"]
            for one in rendered.of_kind("Service")
            for each in items(one, "spec", "ports")
        ),
        *(at(each, "port") for each in every(list(rendered.objects), "httpGet")),
        *(
            port["port"]
            for one in rendered.of_kind("NetworkPolicy")
            for rule in items(one, "spec", "ingress")
            for port in items(rule, "ports")
        ),
        *(
            each["port"]
            for one in rendered.of_kind("PodMonitor")
            for each in items(one, "spec", "podMetricsEndpoints")
        ),
    ]  # fmt: skip
    assert {"endpoint", "admin"} <= set(meant)
    assert set(meant) <= set(names)


def test_volumes_exist_and_are_used(rendered: Rendered) -> None:
    """What is mounted is there, what is there is mounted, and no two at one place."""
    there = [each["name"] for each in items(rendered.pod, "volumes")]
    mounted: set[object] = set()
    for each in rendered.containers().values():
        mounts = items(each, "volumeMounts")
        mounted |= {mount["name"] for mount in mounts}
        places = [mount["mountPath"] for mount in mounts]
        assert len(places) == len(set(places))
    assert sorted(map(str, there)) == sorted(map(str, mounted))


def test_what_is_named_is_there(rendered: Rendered) -> None:
    """Config maps, secrets with their keys, claims of storage and of GPUs."""
    by_kind = {
        kind: {str(at(each, "metadata", "name")) for each in rendered.of_kind(kind)}
        for kind in ("ConfigMap", "Secret", "PersistentVolumeClaim", "ResourceClaimTemplate")
    }
    pod = rendered.pod
    assert {at(each, "name") for each in every(pod, "configMap")} <= by_kind["ConfigMap"]
    assert {*every(pod, "claimName")} == by_kind["PersistentVolumeClaim"]
    assert {*every(pod, "resourceClaimTemplateName")} == by_kind["ResourceClaimTemplate"]
    referred = [mapping(each) for each in every(pod, "secretKeyRef")]
    assert referred
    for each in referred:
        secret = rendered.named("Secret", str(each["name"]))
        assert each.get("optional") or each["key"] in mapping(secret, "data")
    claims = {at(each, "name") for each in items(pod, "resourceClaims")}
    asked = {
        claim["name"]
        for each in rendered.containers().values()
        for claim in items(each, "resources", "claims")
    }
    assert asked == claims


def test_what_restarts_the_pod(variants: dict[str, Rendered]) -> None:
    """Another flag of an engine does, by a config map's name; specswitch's own file does not."""
    names = {str(at(each, "metadata", "name")) for each in variants["claim"].of_kind("ConfigMap")}
    assert "specswitch" in names
    (engines,) = names - {"specswitch"}
    assert re.fullmatch(r"engines-[a-z0-9]{10}", engines)


def test_nothing_is_put_into_a_namespace_of_ours(variants: dict[str, Rendered]) -> None:
    """The base leaves that to whoever builds on it; the example has one, for all of its objects."""
    assert not any(at(each, "metadata", "namespace") for each in variants["demo"].objects)
    for each in variants["everything"].objects:
        assert at(each, "metadata", "namespace") == "specswitch", each["kind"]


def test_missing_secrets_are_said(tmp_path: Path) -> None:
    """Without secrets.env nothing is made, and the answer names the file."""
    done = kustomize(copied(tmp_path), check=False)
    assert done.returncode != 0
    assert "secrets.env" in done.stderr


def test_the_example_has_every_secret() -> None:
    """The keys that the pod takes from the secret are those of the example, and no others."""
    example = (FOLDER / "example" / "secrets.env.example").read_text()
    told = re.findall(r"^(\w+)=$", example, re.MULTILINE)
    pod = yaml.safe_load((FOLDER / "base" / "pod.yaml").read_text())
    assert {str(at(each, "key")) for each in every(pod, "secretKeyRef")} == set(told)
    assert set(SECRETS) <= set(told)


def test_secrets_are_kept_out_of_git() -> None:
    """What a user fills in is ignored, wherever it is copied to."""
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"secrets.env", "deploy/kubernetes/mine*/"} <= set(ignored)


# Watching -------------------------------------------------------------------------------------


def jobs(rendered: Rendered) -> Iterator[tuple[str, str | None]]:
    """The jobs that the pod monitors make, each with its upstream."""
    for monitor in rendered.of_kind("PodMonitor"):
        for endpoint in items(monitor, "spec", "podMetricsEndpoints"):
            labels = {
                str(each["targetLabel"]): str(each["replacement"])
                for each in items(endpoint, "relabelings")
            }
            yield labels["job"], labels.get("upstream")


def test_jobs_are_called_as_the_rules_want(variants: dict[str, Rendered]) -> None:
    """Job and `upstream` are those of deploy/prometheus, on the ports that are meant."""
    whole = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    wanted = {
        (str(job["job_name"]), at(each, "labels", "upstream"))
        for job in whole["scrape_configs"]
        for each in job["static_configs"]
        if job["job_name"] != "prometheus"
    }
    assert set(jobs(variants["everything"])) == wanted
    for each in variants["everything"].of_kind("PodMonitor"):
        for endpoint in items(each, "spec", "podMetricsEndpoints"):
            relabelled = [str(one["replacement"]) for one in items(endpoint, "relabelings")]
            assert endpoint["port"] == (relabelled[-1] if "sglang" in relabelled else "admin")


def test_the_dashboard_is_the_one(variants: dict[str, Rendered]) -> None:
    """Grafana's sidecar gets the file that compose mounts, and `kubectl apply` can note it."""
    found = variants["everything"].named("ConfigMap", "specswitch-dashboard")
    assert mapping(found, "metadata", "labels")["grafana_dashboard"] == "1"
    file = ROOT / "deploy" / "grafana" / "dashboards" / "specswitch.json"
    assert mapping(found, "data") == {file.name: file.read_text()}
    text = plain([found], lambda _: True)
    assert len(text.encode()) < APPLIED_BYTES


def test_who_may_ask_whom(variants: dict[str, Rendered]) -> None:
    """The endpoint is for all, the admin listener and the engines are for Prometheus alone."""
    for name, inner in (("claim", ["admin"]), ("everything", ["admin", "spec", "base"])):
        policy = variants[name].named("NetworkPolicy", "specswitch")
        assert words(policy, "spec", "policyTypes") == ["Ingress"]
        outer, watching = items(policy, "spec", "ingress")
        assert "from" not in outer
        assert [each["port"] for each in items(outer, "ports")] == ["endpoint"]
        assert [each["port"] for each in items(watching, "ports")] == inner
        (who,) = items(watching, "from")
        assert mapping(who, "namespaceSelector", "matchLabels")
        assert mapping(who, "podSelector", "matchLabels")


def test_the_configuration_is_one() -> None:
    """What is commented out in specswitch.toml are keys with their defaults, as for compose."""
    texts = [
        (ROOT / "deploy" / folder / "specswitch.toml").read_text()
        for folder in ("specswitch", "kubernetes/base")
    ]
    compose, here = (
        tomllib.loads(re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE)) for text in texts
    )
    assert here == compose


# The page -------------------------------------------------------------------------------------


def test_the_page_names_every_folder() -> None:
    """Each part that can be built on, or added, and no other."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    told = page.partition("| folder | what it is for |")[2].partition("\n\n")[0]
    there = {
        file.parent.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("kustomization.yaml")
    }
    assert set(re.findall(r"`([\w/-]+)`(?=[^|]*\|[^|]*\|$)", told, re.MULTILINE)) == there - {
        "mine"
    }


def test_the_commands_of_the_page_are_accepted() -> None:
    """What is run inside the container are commands of specswitch, and its own paths and ports."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    commands = re.findall(
        r"exec deployment/specswitch -- specswitch (\w+)(.*)$", page, re.MULTILINE
    )
    assert isinstance(main, click.Group)
    params = {}
    for name, rest in commands:
        with main.commands[name].make_context(name, shlex.split(rest)) as context:
            params[name] = context.params
    assert set(params) == {"doctor", "calibrate"}
    assert str(params["calibrate"]["out"]) == "/var/lib/specswitch/calibration.json"
    assert params["calibrate"]["reload"] == "http://127.0.0.1:8001"
