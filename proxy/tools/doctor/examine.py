"""Are these two servers a pair that can serve? All checks in their order, and their report.

    report = await examine(spec_url, base_url, clock=time.monotonic)
    report.exit_code  # 0 fine, 1 warnings, 2 errors

A server that cannot be read is a finding, as is all else that is wrong with it.
"""

import asyncio
import json
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

import httpx2
from rich.console import Console
from rich.text import Text

from proxy.core.words import UpstreamName
from proxy.tools.asking import connect
from proxy.tools.doctor.diagnosis import Finding, Report, Severity, gravest_first
from proxy.tools.doctor.live import REQUESTS, Live, check_live, try_out
from proxy.tools.doctor.memory import check_memory
from proxy.tools.doctor.pair import check_pair
from proxy.tools.doctor.server import check_server
from proxy.tools.doctor.server_info import ReadError, ServerInfo, Trouble, read_server
from proxy.tools.doctor.spec import check_spec
from proxy.tools.progress import progress

_REQUEST_SECONDS = 120.0
"""For one short answer: a first request may compile kernels."""

_WIDEST = 100
"""Columns; longer lines are hard to read."""
_INDENT = " " * len("  change  ")

_CHANGES: Mapping[Trouble, str] = {
    Trouble.UNREACHABLE: "start it, or give the right address",
    Trouble.SILENT: "see its log: a stopped scheduler answers /v1/models and not /server_info",
    Trouble.KEY: "give its key in SPECSWITCH_UPSTREAMS_{NAME}_API_KEY",
    Trouble.ANSWER: "give the address of an SGLang server",
}
_STYLES: Mapping[Severity, str] = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "yellow",
    Severity.NOTE: "cyan",
    Severity.OK: "green",
}


def _ignore(_: str) -> None:
    """Where nobody wants to know how far it is."""


async def examine(  # noqa: PLR0913 - two servers with a key each, and how
    spec_url: str,
    base_url: str,
    *,
    spec_api_key: str | None = None,
    base_api_key: str | None = None,
    requests: bool = True,
    clock: Callable[[], float] = time.monotonic,
    tick: Callable[[str], None] = _ignore,
) -> Report:
    """Read both servers, try them out with a few requests, and say what was found.

    With `requests` false nothing is generated. Requests go out one at a time, since the two servers
    may share a GPU. `tick` is called before each of about REQUESTS, with what comes next.

    Raises:
        SpecswitchError: an address is none of http or https.
    """
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(
                connect(url, api_key=key, timeout=_REQUEST_SECONDS, connections=4)
            )
            for name, url, key in (
                (UpstreamName.SPEC, spec_url, spec_api_key),
                (UpstreamName.BASE, base_url, base_api_key),
            )
        }
        readings = await asyncio.gather(*(_read(name, clients[name]) for name in clients))
        servers = {each.name: each for each in readings if isinstance(each, ServerInfo)}
        findings = [each for each in readings if isinstance(each, Finding)]
        findings += judge(servers)
        lives: dict[UpstreamName, Live] = {}
        if requests and not any(each.code == "pair.same_server" for each in findings):
            for name, info in servers.items():
                lives[name] = await try_out(clients[name], info, clock=clock, tick=tick)
            findings += check_live(lives)
    spec = lives.get(UpstreamName.SPEC)
    return Report(
        findings=gravest_first(findings),
        servers=servers,
        acceptance_length=None if spec is None else spec.acceptance_length,
    )


def judge(servers: Mapping[UpstreamName, ServerInfo]) -> Iterator[Finding]:
    """What can be said without a request, of those servers that could be read."""
    spec, base = servers.get(UpstreamName.SPEC), servers.get(UpstreamName.BASE)
    if spec is not None and base is not None:
        pair = list(check_pair(spec, base))
        yield from pair
        if any(each.code == "pair.same_server" for each in pair):
            return
    yield from _merged(each for info in servers.values() for each in check_server(info))
    if spec is not None and spec.algorithm is not None:
        yield from check_spec(spec)
    if spec is not None and base is not None:
        yield from check_memory(spec, base)


def _merged(findings: Iterator[Finding]) -> list[Finding]:
    """What is so of both servers, said once."""
    merged: dict[Finding, Finding] = {}
    for each in findings:
        finding = replace(each, server=None)
        again = finding in merged
        merged[finding] = replace(finding, what=f"both: {each.what}") if again else each
    return list(merged.values())


async def _read(name: UpstreamName, client: httpx2.AsyncClient) -> ServerInfo | Finding:
    try:
        return await read_server(name, client)
    except ReadError as error:
        return Finding(
            code=f"reach.{error.trouble}",
            severity=Severity.ERROR,
            server=name,
            what=str(error),
            why="nothing else can be checked of it, and specswitch could not use it",
            change=_CHANGES[error.trouble].format(NAME=name.upper()),
        )


async def run(
    spec_url: str,
    base_url: str,
    *,
    spec_api_key: str | None = None,
    base_api_key: str | None = None,
    requests: bool = True,
    json_only: bool = False,
) -> int:
    """Examine both, print the report, and return the exit code.

    Raises:
        SpecswitchError: an address is none of http or https.
    """
    total = len(UpstreamName) * REQUESTS if requests else 0
    err = Console(stderr=True)
    with progress(err, total=total, what="doctor", quiet=json_only or not requests) as shown:
        report = await examine(
            spec_url,
            base_url,
            spec_api_key=spec_api_key,
            base_api_key=base_api_key,
            requests=requests,
            tick=lambda note: shown.step(note=note),
        )
    if json_only:
        print(as_json(report))  # noqa: T201 - its output
    else:
        show(report, Console())
    return report.exit_code


def show(report: Report, console: Console) -> None:
    """Print the report for people: what matters block by block, what is well in one."""
    width = min(console.width, _WIDEST)
    for each in report.findings:
        if each.severity is not Severity.OK:
            console.print(_block(each, width), soft_wrap=True)
    fine = report.of(Severity.OK)
    if fine:
        checks = "1 check is fine" if len(fine) == 1 else f"{len(fine)} checks are fine"
        named = ", ".join(dict.fromkeys(map(_short, fine)))
        console.print(Text(_wrapped(f"{checks}: {named}.", width), style="green"), soft_wrap=True)
    console.print(_summary(report), highlight=False)


def as_json(report: Report) -> str:
    """The report for programs."""
    return json.dumps(report.fields(), indent=2, ensure_ascii=False)


def _block(finding: Finding, width: int) -> Text:
    """One finding in lines of at most `width`; a flag is never cut, so that it can be copied."""
    block = Text()
    block.append(finding.severity.value, style=_STYLES[finding.severity])
    block.append(f" {finding.code}\n", style="bold")
    server = "" if finding.server is None else f"{finding.server}: "
    parts = {
        "what": f"{server}{finding.what}{_named(finding, width)}",
        "why": finding.why,
        "change": finding.change,
    }
    for label, text in parts.items():
        if text:
            block.append(f"  {label:<8}", style="dim")
            block.append(_wrapped(text, width, _INDENT).removeprefix(_INDENT) + "\n")
    return block


def _named(finding: Finding, width: int) -> str:
    """What the finding counts, if that is no more than a line."""
    if not finding.names:
        return ""
    listed = f": {', '.join(finding.names)}"
    return listed if len(listed) <= width - len(_INDENT) else "; --json names them"


def _wrapped(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(
        text,
        max(width, 2 * len(_INDENT)),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _short(finding: Finding) -> str:
    return finding.code.partition(".")[2].replace("_", " ")


def _summary(report: Report) -> str:
    counts = [
        f"{len(report.of(severity))} {severity.value}{'' if len(report.of(severity)) == 1 else 's'}"
        for severity in (Severity.ERROR, Severity.WARNING, Severity.NOTE)
        if report.of(severity)
    ]
    return ", ".join(counts) if counts else "nothing to say: this is a pair"
