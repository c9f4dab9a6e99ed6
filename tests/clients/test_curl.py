"""curl, as in every example of every manual."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from time import monotonic

import pytest

from tests.clients.rows import CURL, Client, row
from tests.clients.stand import CHAT, KEY, Stand
from tests.harness.process import Specswitch

TELL = "\n%{http_code} %{http_version}"
"""What curl writes behind a body."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a run of curl came to."""

    exit_code: int
    body: str
    status: int
    version: str
    verbose: str


def curl(stand: Stand, *options: str, body: str = "", key: str = KEY) -> Said:
    """A chat by curl, with *options* more; *body* is as `-d` takes it."""
    done = _started(stand, *options, body=body, key=key)
    out, err = done.communicate(timeout=45)
    body, _, told = out.rpartition("\n")
    status, _, version = told.partition(" ")
    return Said(done.returncode, body, int(status or 0), version, err)


def _started(
    stand: Stand, *options: str, body: str = "", at: Specswitch | None = None, key: str = KEY
) -> subprocess.Popen[str]:
    program = which("curl")
    assert program is not None, "curl is not on PATH"
    url = (at or stand.wide).url + CHAT
    body = body or _body(stand)
    headers = ["-H", "content-type: application/json", "-H", f"authorization: Bearer {key}"]
    return subprocess.Popen(  # noqa: S603 - our own words
        [program, "-sS", "--noproxy", "*", "-w", TELL, *headers, "-d", body, *options, url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _body(stand: Stand, **fields: object) -> str:
    messages = [{"role": "user", "content": "hello"}]
    return json.dumps({"model": stand.pair.model, "messages": messages, "max_tokens": 16, **fields})


def _file(folder: Path, stand: Stand, **fields: object) -> str:
    file = folder / "body.json"
    file.write_text(_body(stand, temperature=0, **fields))
    return f"@{file}"


def _text(answer: str) -> str:
    text = json.loads(answer)["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


@row("a chat", CURL)
def test_a_chat(stand: Stand, client: Client) -> None:
    """JSON as it came from the engine."""
    with stand.counting((CHAT, "ok")):
        said = curl(stand)

    assert (said.exit_code, said.status, said.version) == (0, 200, "1.1")
    assert _text(said.body)


@pytest.mark.parametrize("options", [("-N",), ("-N", "--http1.0"), ("-N", "--compressed")])
@row("`-N`: a stream; also with `--http1.0`, `--compressed`", CURL)
def test_a_stream(stand: Stand, client: Client, options: tuple[str, ...], tmp_path: Path) -> None:
    """Events, and their end."""
    with stand.counting((CHAT, "ok")):
        said = curl(stand, *options, body=_file(tmp_path, stand, stream=True))

    assert (said.exit_code, said.status) == (0, 200)
    events = said.body.split("\n\n")
    assert all(event.startswith("data: ") for event in events if event.strip())
    assert said.body.rstrip().endswith("data: [DONE]")


@row("`--http1.0`", CURL)
def test_http_1_0(stand: Stand, client: Client) -> None:
    """No chunks, and the connection ends with the answer."""
    with stand.counting((CHAT, "ok")):
        said = curl(stand, "--http1.0", "-v")

    assert (said.exit_code, said.status) == (0, 200)
    assert _text(said.body)
    assert "transfer-encoding: chunked" not in said.verbose.lower()


@row("`--http2`: an upgrade that is not taken up", CURL)
def test_http_2(stand: Stand, client: Client) -> None:
    """The answer comes in HTTP/1.1."""
    with stand.counting((CHAT, "ok")):
        said = curl(stand, "--http2")

    assert (said.exit_code, said.status, said.version) == (0, 200, "1.1")
    assert _text(said.body)


@row("`Expect: 100-continue`, with a body of 2 MB", CURL)
def test_expect(stand: Stand, client: Client, tmp_path: Path) -> None:
    """Told to go on at once: curl alone would wait a second. The body is the engine's to refuse."""
    large = _file(tmp_path, stand, unknown="x" * 2_000_000)
    with stand.counting((CHAT, "ok")):
        started = monotonic()
        expect = ("-H", "Expect: 100-continue", "--expect100-timeout", "20")
        said = curl(stand, "-v", *expect, body=large)

    assert (said.exit_code, said.status) == (0, 200)
    assert "< HTTP/1.1 100 Continue" in said.verbose
    assert _text(said.body)
    assert monotonic() - started < 20


@row("`-I /v1/models`", CURL)
def test_head(stand: Stand, client: Client) -> None:
    """A head alone."""
    program = which("curl")
    assert program is not None, "curl is not on PATH"
    url = f"{stand.wide.url}/v1/models"
    command = [program, "-sSI", "--noproxy", "*", "-H", f"authorization: Bearer {KEY}", url]
    with stand.counting(("/v1/models", "ok")):
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603

    assert done.stdout.startswith("HTTP/1.1 ")
    assert "x-specswitch-upstream: base" in done.stdout
    assert done.stdout.endswith("\n\n")


@row("`-f`, with a wrong key: exit code 22", CURL)
def test_a_wrong_key(stand: Stand, client: Client) -> None:
    """A script notices."""
    with stand.counting((CHAT, "rejected")):
        said = curl(stand, "-f", key="sk-wrong")

    assert (said.exit_code, said.status) == (22, 401)


@row("`--retry`, where there is no room: waits for as long as `Retry-After` says", CURL)
def test_retry(stand: Stand, client: Client) -> None:
    """Refused once, it asks again, and is answered."""
    expected = [(CHAT, "abandoned"), (CHAT, "ok")]
    with stand.refusing_once(CHAT, *expected) as give_back:
        started = monotonic()
        process = _started(stand, "--retry", "4", at=stand.narrow)
        give_back()
        out, _ = process.communicate(timeout=45)

    assert process.returncode == 0
    assert out.rstrip().endswith("200 1.1")
    assert monotonic() - started >= 1.0


@row("`--max-time`: the engine stops, and it counts as abandoned", CURL)
def test_max_time(stand: Stand, client: Client, tmp_path: Path) -> None:
    """Exit code 28, in the middle of a stream."""
    body = _file(tmp_path, stand, max_tokens=3900, ignore_eos=True, stream=True)
    with stand.counting((CHAT, "abandoned")):
        said = curl(stand, "-N", "--max-time", "1", body=body)

    assert said.exit_code == 28
    assert said.body.count("data: ") > 2
    assert "[DONE]" not in said.body
