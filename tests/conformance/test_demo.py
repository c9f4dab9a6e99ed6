"""`specswitch demo` and `specswitch engines` as a newcomer runs them, on a terminal and off it."""

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-m", "proxy")
PATIENCE_SECONDS = 60.0
INVITATION = "Now it is yours; Ctrl-C stops all."
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@contextmanager
def started(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """`specswitch argv` with pipes; killed if it does not end by itself."""
    with subprocess.Popen(  # noqa: S603 - our own words
        [*COMMAND, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def next_line(process: subprocess.Popen[str]) -> str:
    """The next line that it says; the test's own timeout bounds the wait."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "it has ended"
    return line.rstrip("\n")


def interrupted(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    """The exit code after a signal, and what it said on standard error."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, errors


class Terminal:
    """`specswitch argv` on a terminal of 80 columns and 24 rows."""

    def __init__(self, *argv: str) -> None:
        self.written = ""
        main, other = pty.openpty()
        self._main = main
        size = {"COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}
        self.process = subprocess.Popen(  # noqa: S603 - our own words
            [*COMMAND, *argv],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**os.environ, **size},
            start_new_session=True,
        )
        os.close(other)

    def until(self, text: str) -> None:
        """Read until `text` has been written."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in ESCAPES.sub("", self.written):
            assert time.monotonic() < deadline, self.written
            assert self._read(), f"ended without {text!r}: {self.written}"

    def ended(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            continue
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        """Leave nothing behind."""
        self.process.kill()
        self.process.wait()
        os.close(self._main)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._main], [], [], PATIENCE_SECONDS)
        assert ready, f"silent: {self.written}"
        try:
            read = os.read(self._main, 65536)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.written += read.decode(errors="replace")
        return bool(read)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """The demo on a terminal."""
    made = Terminal("demo", "--port=0", "--admin-port=0")
    try:
        yield made
    finally:
        made.close()


# The demo ------------------------------------------------------------------------------------


def test_the_demo_shows_what_it_is_for() -> None:
    """Single requests go to spec, of a burst at most N* do, then spec again; none fails."""
    with started("demo", "--once", "--json", "--port=0", "--admin-port=0") as process:
        out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, errors) == (0, "")
    addresses, alone, burst, again = map(json.loads, out.splitlines())
    assert addresses["crossover"] == pytest.approx(3.1, abs=0.1)
    assert [part["failed"] for part in (alone, burst, again)] == [0, 0, 0]
    assert {went["upstream"] for went in alone["went"] + again["went"]} == {"spec"}
    went = {each["upstream"]: each["requests"] for each in burst["went"]}
    assert 1 <= went["spec"] <= 3
    assert went["base"] == 24 - went["spec"]
    # What the pair is for: spec is faster for one, and base carries more in all.
    assert alone["tokens_per_second_each"] > burst["tokens_per_second_each"]
    assert burst["tokens_per_second"] > alone["tokens_per_second"]


def test_what_it_invites_to_works() -> None:
    """Every curl that it prints is one that is answered; then a signal ends it with 0."""
    with started("demo", "--port=0", "--admin-port=0") as process:
        while next_line(process) != INVITATION:
            continue
        said = ""
        while '"base"' not in said:
            said += next_line(process) + "\n"
        commands = said.replace("\\\n", " ").splitlines()
        curls = [shlex.split(each, comments=True) for each in commands if "curl" in each]
        assert len(curls) == 5
        for words in curls:
            assert request(words[1:]).status_code == 200, words
        assert request(["-i", "-X", "GET", curls[1][1]]).json()["control"] == "base"
        assert interrupted(process, signal.SIGTERM) == (0, "")


def request(words: list[str]) -> httpx2.Response:
    """What curl does with these arguments."""
    method, url, content, headers = "GET", "", None, {}
    rest = iter(words)
    for word in rest:
        match word:
            case "-i":
                continue
            case "-X":
                method = next(rest)
            case "-H":
                name, _, value = next(rest).partition(": ")
                headers[name] = value
            case "-d":
                content, method = next(rest), "POST" if method == "GET" else method
            case _:
                url = word
    return httpx2.request(method, url, content=content, headers=headers, trust_env=False)


def test_it_says_what_one_server_would_give() -> None:
    """After the traffic, also with --once: by the model, for one request and for the burst."""
    with started("demo", "--once", "--port=0", "--admin-port=0") as process:
        out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, errors) == (0, "")
    assert re.search(r"1 request +24 at once\n +spec +213 +351\n +base +125 +674\n", out)
    assert max(map(len, out.partition("For comparison")[2].splitlines())) <= 80


def test_it_is_ready_within_seconds() -> None:
    """From the command to an answer of one's own in a few seconds, the traffic still going on."""
    began = time.monotonic()
    with started("demo", "--json", "--port=0", "--admin-port=0") as process:
        url = json.loads(next_line(process))["url"]
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        answer = httpx2.post(f"{url}/v1/chat/completions", json=body, trust_env=False)
        assert answer.status_code == 200
        assert time.monotonic() - began < 15
        assert interrupted(process, signal.SIGINT) == (0, "")


def test_the_demo_on_a_terminal(terminal: Terminal) -> None:
    """The view fits and says what happens; Ctrl-C afterwards ends it with 0 and the cursor back."""
    terminal.until(INVITATION)
    terminal.until('"control": "base"')
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 0
    # Each frame erases the lines of the one before it.
    before, _, _ = terminal.written.replace("\x1b[2K", "\n").partition(INVITATION)
    before = ESCAPES.sub("", before)
    assert max(map(len, before.replace("\r", "").splitlines())) <= 80
    assert "In flight   spec" in before
    assert re.search(r"24 at once +24/24 +[123] +2[123] ", before)
    assert terminal.written.count("\x1b[?25l") == terminal.written.count("\x1b[?25h") == 1
    assert "Traceback" not in terminal.written


def test_ctrl_c_in_the_middle(terminal: Terminal) -> None:
    """It ends the traffic too, cleanly: no traceback, and the cursor is back."""
    terminal.until("1/4")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 0
    assert terminal.written.count("\x1b[?25l") == terminal.written.count("\x1b[?25h") == 1
    assert "Traceback" not in terminal.written
    assert INVITATION not in terminal.written


def test_an_interrupted_once_has_not_done_its_work() -> None:
    """With --once the end is after the traffic: before it, the exit code says so."""
    with started("demo", "--once", "--json", "--port=0", "--admin-port=0") as process:
        next_line(process)
        assert interrupted(process, signal.SIGINT) == (130, "")


# The engines ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_engines_alone(number: signal.Signals) -> None:
    """Both addresses answer as what they are, and a signal ends them with 0."""
    with started("engines", "--spec-port=0", "--base-port=0", "--json") as process:
        told = json.loads(next_line(process))
        assert told["crossover"] == pytest.approx(3.1, abs=0.1)
        for name, algorithm in (("spec", "EAGLE3"), ("base", None)):
            info = httpx2.get(f"{told[name]}/server_info", trust_env=False).json()
            assert info["speculative_algorithm"] == algorithm
        assert interrupted(process, number) == (0, "")


@pytest.mark.parametrize(("name", "algorithm"), [("spec", "EAGLE3"), ("base", None)])
def test_one_engine_alone(name: str, algorithm: str | None) -> None:
    """It is there and the other is not; N* is that of the profile all the same."""
    with started("engines", "--only", name, "--spec-port=0", "--base-port=0", "--json") as process:
        told = json.loads(next_line(process))
        assert set(told) == {name, "profile", "crossover"}
        info = httpx2.get(f"{told[name]}/server_info", trust_env=False).json()
        assert info["speculative_algorithm"] == algorithm
        assert interrupted(process, signal.SIGTERM) == (0, "")


def test_engines_on_another_address() -> None:
    """Where it is told to, for a container's network."""
    with started("engines", "--host=127.0.0.2", "--spec-port=0", "--base-port=0") as process:
        assert next_line(process).startswith("spec  http://127.0.0.2:")
        assert interrupted(process, signal.SIGTERM) == (0, "")


def test_the_engines_in_words() -> None:
    """Without --json the addresses and N* are said for people."""
    with started("engines", "--spec-port=0", "--base-port=0") as process:
        assert next_line(process).startswith("spec  http://127.0.0.1:")
        assert next_line(process).startswith("base  http://127.0.0.1:")
        assert next_line(process).startswith("N* of this profile is 3.1")
        assert interrupted(process, signal.SIGINT) == (0, "")
