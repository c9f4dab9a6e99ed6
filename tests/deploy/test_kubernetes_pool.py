"""Several pairs behind an InferencePool: deploy/kubernetes/inference-pool and what a pair needs.

No cluster has run it. The definitions of InferencePool and HTTPRoute come with no package, so these
two are held to each other and to the pods, and were held to their schemas by hand.
"""

import re
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from proxy.config import load
from proxy.control.one_metrics import one_metrics
from proxy.core.words import UpstreamName
from tests.deploy.rendering import (
    FOLDER,
    ROOT,
    Node,
    Rendered,
    at,
    copied,
    every,
    items,
    mapping,
    with_components,
    words,
)
from tests.deploy.test_kubernetes_files import schema_faults

POOL = FOLDER / "inference-pool"
ENDS = {"upstreams.spec.url": "http://a", "upstreams.base.url": "http://b"}
OURS = ("InferencePool", "HTTPRoute")
"""What Kubernetes itself has no schema of."""


@pytest.fixture(scope="module")
def pool() -> Rendered:
    """The pool, its picker and its route."""
    return Rendered.of(POOL)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Rendered]:
    """Two pairs, made as docs/scaling.md says."""
    found = []
    for number in (1, 2):
        mine = with_components(copied(tmp_path_factory.mktemp(f"pair-{number}")), "claim", "pooled")
        file = mine / "kustomization.yaml"
        whole = yaml.safe_load(file.read_text()) | yaml.safe_load(_told(number))
        file.write_text(yaml.safe_dump(whole))
        found.append(_named(mine, number))
    return found


def _told(number: int) -> str:
    """The lines that the page has for a pair's kustomization.yaml."""
    page = (ROOT / "docs" / "scaling.md").read_text()
    (lines,) = re.findall(r"^ *```yaml\n( *# mine-1/.*?)^ *```", page, re.MULTILINE | re.DOTALL)
    return dedent(str(lines)).replace("-1", f"-{number}")


def _named(mine: Path, number: int) -> Rendered:
    """`Rendered` looks for the Deployment by the name without a suffix, and so it is here."""
    found = Rendered.of(mine)
    assert at(found.of_kind("Deployment")[0], "metadata", "name") == f"specswitch-{number}"
    return found


def labels(pair: Rendered) -> Node:
    """Of its pod."""
    return mapping(pair.of_kind("Deployment")[0], "spec", "template", "metadata", "labels")


def pod(pair: Rendered) -> Node:
    """Its spec."""
    return mapping(pair.of_kind("Deployment")[0], "spec", "template", "spec")


def test_the_schemas_of_kubernetes(pool: Rendered, pairs: list[Rendered], tmp_path: Path) -> None:
    """All but InferencePool and HTTPRoute, which are definitions of others."""
    known = [each for each in pool.objects if each["kind"] not in OURS]
    text = "\n---\n".join(yaml.safe_dump(each) for each in known)
    assert {str(each["kind"]) for each in pool.objects} >= {*OURS, "Deployment", "Role"}
    assert not schema_faults(text, "1.34", tmp_path)
    for pair in pairs:
        assert not schema_faults(pair.text, "1.34", tmp_path)


def test_the_pool_selects_every_pair(pool: Rendered, pairs: list[Rendered]) -> None:
    """By labels, on the port of the endpoint; and nothing else of the folder is in it."""
    (found,) = pool.of_kind("InferencePool")
    selector = mapping(found, "spec", "selector", "matchLabels")
    assert selector
    for pair in pairs:
        assert selector.items() <= labels(pair).items()
        containers = items(pod(pair), "containers")
        ports = [port["containerPort"] for each in containers for port in items(each, "ports")]
        assert [each["number"] for each in items(found, "spec", "targetPorts")] == ports[:1]
    picker = mapping(pool.of_kind("Deployment")[0], "spec", "template", "metadata", "labels")
    assert not selector.items() <= picker.items()


def test_the_pool_names_its_picker(pool: Rendered) -> None:
    """Service and port are the picker's, and the route's backend is the pool."""
    (found,) = pool.of_kind("InferencePool")
    (service,) = pool.of_kind("Service")
    (deployment,) = pool.of_kind("Deployment")
    wanted = mapping(found, "spec", "endpointPickerRef")
    assert wanted["name"] == at(service, "metadata", "name")
    ports = {each["port"]: each["targetPort"] for each in items(service, "spec", "ports")}
    assert ports[at(wanted, "port", "number")] == "grpc"
    (container,) = items(deployment, "spec", "template", "spec", "containers")
    assert {*ports.values()} <= {each["name"] for each in items(container, "ports")}
    assert f"--pool-name={at(found, 'metadata', 'name')}" in words(container, "args")
    (route,) = pool.of_kind("HTTPRoute")
    (rule,) = items(route, "spec", "rules")
    (backend,) = items(rule, "backendRefs")
    assert (backend["kind"], backend["name"]) == ("InferencePool", at(found, "metadata", "name"))
    assert f"{backend['group']}/v1" == found["apiVersion"]


def test_the_picker_may_read_what_it_reads(pool: Rendered) -> None:
    """Its account has the role, which only reads; its configuration is mounted where it looks."""
    (binding,) = pool.of_kind("RoleBinding")
    (role,) = pool.of_kind("Role")
    (account,) = pool.of_kind("ServiceAccount")
    (deployment,) = pool.of_kind("Deployment")
    assert at(binding, "roleRef", "name") == at(role, "metadata", "name")
    assert [each["name"] for each in items(binding, "subjects")] == [
        at(account, "metadata", "name")
    ]
    spec = mapping(deployment, "spec", "template", "spec")
    assert spec["serviceAccountName"] == at(account, "metadata", "name")
    assert {verb for each in items(role, "rules") for verb in words(each, "verbs")} == {
        "get", "list", "watch",
    }  # fmt: skip
    (config,) = pool.of_kind("ConfigMap")
    (name,) = mapping(config, "data")
    assert f"--config-file=/config/{name}" in str(every(deployment, "args").__next__())
    assert [*every(spec, "configMap")] == [{"name": at(config, "metadata", "name")}]


def test_the_pickers_own_metrics_are_for_prometheus(pool: Rendered) -> None:
    """It asks the cluster for nobody's rights, which it has no role for; its policy lets in."""
    (deployment,) = pool.of_kind("Deployment")
    (container,) = items(deployment, "spec", "template", "spec", "containers")
    assert "--metrics-endpoint-auth=false" in words(container, "args")
    (policy,) = pool.of_kind("NetworkPolicy")
    chosen = mapping(policy, "spec", "podSelector", "matchLabels")
    assert chosen.items() <= mapping(deployment, "spec", "template", "metadata", "labels").items()
    let_in = {
        str(at(port, "port")): "from" in rule
        for rule in items(policy, "spec", "ingress")
        for port in items(rule, "ports")
    }
    assert let_in == {"grpc": False, "metrics": True}
    assert {*let_in} <= {each["name"] for each in items(container, "ports")}


def test_the_picker_goes_by_plugins_that_it_has(pool: Rendered) -> None:
    """What a profile weighs is one of its plugins, and unlabelled pods are SGLang's, too."""
    (config,) = pool.of_kind("ConfigMap")
    (text,) = mapping(config, "data").values()
    whole = yaml.safe_load(str(text))
    kinds = [each["type"] for each in whole["plugins"]]
    used = {each["pluginRef"] for one in whole["schedulingProfiles"] for each in one["plugins"]}
    assert used < set(kinds)
    assert set(kinds) - used == {"metrics-data-source", "core-metrics-extractor"}
    assert whole["plugins"][-1]["parameters"] == {"defaultEngine": "sglang"}


def test_a_pair_can_be_scraped_like_a_model_server(pairs: list[Rendered]) -> None:
    """The labels by which llm-d takes SGLang's metric names, and the page of them is on."""
    for pair in pairs:
        assert labels(pair)["llm-d.ai/engine-type"] == "sglang"
        assert labels(pair)["inference.networking.k8s.io/engine-type"] == "sglang"
        (container,) = items(pod(pair), "containers")
        given = {str(each["name"]): each.get("value") for each in items(container, "env")}
        assert given["SPECSWITCH_LISTEN_METRICS"] == "true"
        engines = items(pod(pair), "initContainers")
        assert all("--enable-metrics" in words(each, "args")[0] for each in engines)


def test_listen_metrics_is_a_key() -> None:
    """The variable that the pair is given is one of the configuration."""
    assert load(file=None, env={"SPECSWITCH_LISTEN_METRICS": "true"}, overrides=ENDS).listen.metrics


def test_the_page_has_what_the_picker_reads() -> None:
    """Each name that docs/scaling.md says it reads, once, from two servers that have their own."""
    text = (ROOT / "docs" / "scaling.md").read_text().partition("the picker wants")[2]
    wanted = set(re.findall(r"sglang:\w+", text.partition("\n\n")[0]))
    names = ("num_queue_reqs", "num_running_reqs", "token_usage", "num_pages", "page_size")
    page = "".join(
        f'# TYPE sglang:{name} gauge\nsglang:{name}{{model_name="m",tp_rank="0"}} 1\n'
        for name in names
    )
    made = one_metrics(dict.fromkeys(UpstreamName, page)).splitlines()
    found = [line for line in made if line.partition("{")[0] in wanted]
    assert len(found) == len(wanted) == 4
    (cache,) = (line for line in found if "cache_config_info" in line)
    assert 'num_pages="2"' in cache
    assert 'page_size="1"' in cache


def test_pairs_do_not_meet(pairs: list[Rendered]) -> None:
    """Two in one namespace share no name and no selector, and each names what is its own."""
    first, second = (
        {(str(each["kind"]), str(at(each, "metadata", "name"))) for each in pair.objects}
        for pair in pairs
    )
    assert not first & second
    for pair, other in (pairs, pairs[::-1]):
        (deployment,) = pair.of_kind("Deployment")
        selector = mapping(deployment, "spec", "selector", "matchLabels")
        assert selector.items() <= labels(pair).items()
        assert not selector.items() <= labels(other).items()
        names = {str(at(each, "metadata", "name")) for each in pair.objects}
        assert {*every(pod(pair), "claimName")} <= names
        assert {*every(pod(pair), "resourceClaimTemplateName")} <= names
        assert {at(each, "name") for each in every(pod(pair), "configMap")} <= names
        assert {at(each, "name") for each in every(pod(pair), "secretKeyRef")} <= names
