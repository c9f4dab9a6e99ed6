"""What is measured: specswitch, its peers, and the emulator itself, each as it is started.

All stand in front of the same two emulated servers. The two routers and `plain` take turns between
them; nginx, HAProxy, Envoy and LiteLLM send each request to the one with less in flight. What else
they are set to stands in conf/ and below, the limits that the works would exceed among it.
specswitch runs as it comes: it checks the key, looks into each body, decides, counts, and writes
its log, JSON, to a file. What is set beside the addresses:

    crossover 16           between 1 and 32 in flight, so one client alone is served by spec, and
                           each larger work crosses N* while it begins: the decision is a real
                           one, both servers are used, and the mode changes as it does in service
    auth.api_keys          one key, which all clients of all peers send
    limits.max_in_flight   8,192 where 2,048 is the default: some works have 4,096 streams

It is the compiled one where `make compiled` has made that, and otherwise this working tree.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import Template
from typing import Final

from bench.reliability.peers import DEBIAN, PINS, libraries, program
from proxy import __version__

CONFIGURATIONS: Final = Path(__file__).parent / "conf"
REPOSITORY: Final = Path(__file__).parents[2]

KEY: Final = "sk-bench-0123456789abcdef"
"""What each client sends; no secret."""

COMPILED: Final = REPOSITORY / ".compiled" / "site"
"""Where `make compiled` puts it."""

DIRECT, SPECSWITCH, SGLANG_ROUTER = "direct", "specswitch", "sglang-router"
INTERPRETED: Final = "specswitch-interpreted"
CROSSOVER: Final = 16
MOST_IN_FLIGHT: Final = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a target finds things, and is found."""

    folder: Path
    """Its own, for its files and its log; removed when all is over."""
    peers: Path
    """Where `peers.py` has put its program."""
    port: int
    admin_port: int
    spec_port: int
    base_port: int

    @property
    def urls(self) -> tuple[str, str]:
        """Of the two servers."""
        return f"http://127.0.0.1:{self.spec_port}", f"http://127.0.0.1:{self.base_port}"


@dataclass(frozen=True, slots=True)
class Command:
    """How a process is started."""

    words: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """One that is measured, and how it is started; None for the emulator, which runs anyway."""

    name: str
    command: Callable[[Site], Command] | None
    start_seconds: float = 30.0
    """In which it must answer."""
    metrics: str | None = None
    """The path of its metrics, on the admin port."""
    own_path: str | None = None
    """A path that it answers by itself, without an engine."""
    like: str | None = None
    """The target whose works it does; None for its own."""


def is_compiled() -> bool:
    """Whether there is a compiled specswitch to be measured."""
    return (COMPILED / "proxy").is_dir()


def is_stale() -> bool:
    """Whether the compiled one is older than a source of this working tree."""
    made = COMPILED.stat().st_mtime
    return any(path.stat().st_mtime > made for path in (REPOSITORY / "proxy").rglob("*.py"))


def _specswitch(site: Site, tree: Path | None = None) -> Command:
    if tree is None:
        tree = COMPILED if is_compiled() else REPOSITORY
    spec, base = site.urls
    words = [sys.executable, "-m", "proxy", "serve", "--spec-url", spec, "--base-url", base]
    words += ["--host", "127.0.0.1", "--port", str(site.port), "--admin-port", str(site.admin_port)]
    words += ["--crossover", str(CROSSOVER)]
    environment = {
        "SPECSWITCH_AUTH_API_KEYS": f"bench={KEY}",
        "SPECSWITCH_LIMITS_MAX_IN_FLIGHT": str(MOST_IN_FLIGHT),
        "PYTHONPATH": str(tree),
    }
    return Command(words, environment)


def of_tree(name: str, tree: Path) -> Target:
    """The specswitch in the folder `tree`, to be compared with that of this one."""
    return Target(
        name,
        partial(_specswitch, tree=tree),
        metrics="/metrics",
        own_path="/livez",
        like=SPECSWITCH,
    )


def _router(name: str) -> Callable[[Site], Command]:
    """Those of SGLang and vLLM, which is a fork of it, take the same words."""

    def command(site: Site) -> Command:
        words = [str(program(site.peers, name)), *(["launch"] if name == SGLANG_ROUTER else [])]
        words += ["--host", "127.0.0.1", "--port", str(site.port), "--worker-urls", *site.urls]
        words += ["--policy", "round_robin", "--log-level", "error"]
        words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(site.admin_port)]
        words += ["--max-concurrent-requests", str(MOST_IN_FLIGHT)]
        return Command(words)

    return command


def _nginx(site: Site) -> Command:
    words = [str(program(site.peers, "nginx")), "-p", str(site.folder)]
    words += ["-c", str(_configured("nginx.conf", site))]
    return Command(words, _libraries(site))


def _haproxy(site: Site) -> Command:
    words = [
        str(program(site.peers, "haproxy")),
        "-db",
        "-f",
        str(_configured("haproxy.cfg", site)),
    ]
    return Command(words, _libraries(site))


def _envoy(site: Site) -> Command:
    words = [str(program(site.peers, "envoy")), "-c", str(_configured("envoy.yaml", site))]
    return Command([*words, "--concurrency", "1", "-l", "error", "--disable-hot-restart"])


def _litellm(site: Site) -> Command:
    words = [
        str(program(site.peers, "litellm")),
        "--config",
        str(_configured("litellm.yaml", site)),
    ]
    words += ["--host", "127.0.0.1", "--port", str(site.port), "--num_workers", "1"]
    environment = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # nothing is fetched from elsewhere
        "LITELLM_TELEMETRY": "False",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "HOME": str(site.folder),
    }
    return Command(words, environment)


def _plain(site: Site) -> Command:
    words = [
        str(program(site.peers, "plain")),
        "plain:app",
        "--app-dir",
        str(Path(__file__).parent),
    ]
    words += ["--host", "127.0.0.1", "--port", str(site.port), "--log-level", "warning"]
    return Command([*words, "--no-access-log"], {"UPSTREAMS": ",".join(site.urls)})


def _configured(name: str, site: Site) -> Path:
    """A file of conf/ with the ports of `site` in it."""
    values = {
        "folder": str(site.folder),
        "port": str(site.port),
        "spec_port": str(site.spec_port),
        "base_port": str(site.base_port),
    }
    made = site.folder / name
    made.write_text(Template((CONFIGURATIONS / name).read_text()).substitute(values))
    return made


def _libraries(site: Site) -> dict[str, str]:
    found = libraries(site.peers)
    return {"LD_LIBRARY_PATH": found} if found else {}


TARGETS: Final = {
    target.name: target
    for target in (
        Target(DIRECT, None, own_path="/health"),
        Target(SPECSWITCH, _specswitch, metrics="/metrics", own_path="/livez"),
        of_tree(INTERPRETED, REPOSITORY),
        Target(SGLANG_ROUTER, _router(SGLANG_ROUTER), metrics="/metrics", own_path="/liveness"),
        Target("nginx", _nginx),
        Target("haproxy", _haproxy),
        Target("envoy", _envoy),
        Target("vllm-router", _router("vllm-router"), metrics="/metrics", own_path="/liveness"),
        Target("plain", _plain),
        Target("litellm", _litellm, start_seconds=120.0),
    )
}
"""In the order of the table."""

CORE: Final = (DIRECT, SPECSWITCH, SGLANG_ROUTER)
"""Those that the targets of the project are about; the others stand beside them."""


def versions(names: Sequence[str], peers: Path) -> dict[str, str]:
    """What each of `names` is, exactly."""
    form = "compiled" if is_compiled() else "interpreted"
    old = " before its sources were last changed" if is_compiled() and is_stale() else ""
    found = {SPECSWITCH: f"{__version__} at {_commit()}, {form}{old}"}
    for name in names:
        if name in PINS:
            found[name] = PINS[name].replace(f"{name}==", "")
        elif name in DEBIAN:
            said = _said([str(program(peers, name)), "-v"], libraries(peers))
            number = re.search(r"\d+\.\d+\.\d+", said)
            found[name] = number.group() if number else said
    return found


def _commit() -> str:
    """Of this working tree; `unknown` outside of git."""
    git = ["git", "-C", str(REPOSITORY)]
    changed = " with changes" if _said([*git, "status", "--porcelain", "proxy"]) else ""
    return (_said([*git, "rev-parse", "--short", "HEAD"]) or "unknown commit") + changed


def _said(words: Sequence[str], libraries_path: str = "") -> str:
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries_path}
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            words, capture_output=True, text=True, check=False, env=environment
        )
    except OSError:
        return ""
    return (done.stdout or done.stderr).strip() if not done.returncode else ""
