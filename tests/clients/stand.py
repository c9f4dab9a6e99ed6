"""specswitch, real processes of it, in front of one pair: what every client here speaks to."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

from tests.clients.rows import Client, PairKind
from tests.clients.talker import Raised, Talker
from tests.engines.pair import wait_until
from tests.harness.process import Specswitch

KEY: Final = "sk-clients"
"""The one that is right."""
N_STAR: Final = 4
MOST_RETRIES: Final = 4
"""That the scripts let a client make."""
CHAT: Final = "/v1/chat/completions"
SETTLED_SECONDS: Final = 15.0
"""Within which nothing may be in flight after a case, here or in the engines. SGLang looks every
four seconds whether whoever waits for a whole answer is still there."""

Counts = Counter[tuple[str, str]]
"""Requests by endpoint and outcome."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two engines, whatever they are."""

    kind: PairKind
    model: str
    spec_url: str
    base_url: str

    @property
    def urls(self) -> tuple[str, str]:
        """Of both."""
        return self.spec_url, self.base_url

    def running(self) -> int:
        """How many sequences both have in hand, as `/v1/loads` has it."""
        ranks = [
            rank
            for url in self.urls
            for rank in httpx2.get(f"{url}/v1/loads", trust_env=False).json()["loads"]
        ]
        return sum(int(rank["num_running_reqs"] + rank["num_waiting_reqs"]) for rank in ranks)


@dataclass
class Stand:
    """A pair with specswitch in front: one with room for all, and one that has it for one alone."""

    pair: Pair
    wide: Specswitch
    narrow: Specswitch
    talkers: dict[Client, Talker]
    _lifetime: ExitStack = field(repr=False)
    _logs: Path = field(repr=False)

    @classmethod
    @contextmanager
    def of(cls, pair: Pair, logs: Path) -> Iterator["Stand"]:
        """Start both; at their end nothing may be left, and the books balance."""
        with ExitStack() as lifetime:

            def started(name: str, **settings: object) -> Specswitch:
                process = Specswitch(
                    logs / f"{pair.kind}-{name}.log",
                    spec_url=pair.spec_url,
                    base_url=pair.base_url,
                    policy_crossover=N_STAR,
                    auth_api_keys=f"clients={KEY}",
                    **settings,
                )
                process.leaves_nothing = True
                return lifetime.enter_context(process)

            wide = started("wide")
            narrow = started("narrow", limits_max_in_flight=1, limits_queue_size=0)
            yield cls(pair, wide, narrow, {}, lifetime, logs)

    def talker(self, client: Client) -> Talker:
        """The process of a client, started when it is first asked for."""
        if client not in self.talkers:
            self.talkers[client] = self._lifetime.enter_context(Talker(client, self._logs))
        return self.talkers[client]

    def ask(
        self, client: Client, case: str, at: Specswitch | None = None, key: str = KEY
    ) -> Talker:
        """Begin a case of a client; the talker then says what it saw or raised."""
        talker = self.talker(client)
        talker.ask(case, url=(at or self.wide).url, key=key, model=self.pair.model)
        return talker

    def saw(self, client: Client, case: str) -> Any:  # noqa: ANN401 - each case tells its own
        """What a client saw of a case."""
        return self.ask(client, case).saw()

    def raised(self, client: Client, case: str, **where: Any) -> Raised:  # noqa: ANN401 - of `ask`
        """What a client raised in a case."""
        return self.ask(client, case, **where).raised()

    @contextmanager
    def counting(self, *expected: tuple[str, str], at: Specswitch | None = None) -> Iterator[None]:
        """Hold that what happens is *expected*, once each: (endpoint, outcome), nothing more.

        Afterwards nothing is open or in flight, here or in the engines.
        """
        process = at or self.wide
        before = counts(process)
        yield
        wait_until(lambda: _quiet(process), "nothing is open", SETTLED_SECONDS)
        found = counts(process) - before
        assert found == Counter(expected), dict(found)
        wait_until(lambda: self.pair.running() == 0, "the engines are idle", SETTLED_SECONDS)

    @contextmanager
    def refusing_once(
        self, endpoint: str, *expected: tuple[str, str]
    ) -> Iterator[Callable[[], None]]:
        """`counting` at `narrow`, occupied until what is yielded is called: it waits for a refusal.

        A client that asks again may be refused once more until the place is free.
        """
        before = counts(self.narrow)
        refused = (endpoint, "rejected")

        def once_refused() -> None:
            wait_until(lambda: counts(self.narrow)[refused] > before[refused], "it is refused")
            answer()

        with self.occupied() as answer:
            yield once_refused
        wait_until(lambda: _quiet(self.narrow), "nothing is open", SETTLED_SECONDS)
        found = counts(self.narrow) - before
        assert 1 <= found.pop(refused) <= MOST_RETRIES, dict(found)
        assert found == Counter(expected), dict(found)

    @contextmanager
    def occupied(self) -> Iterator[Callable[[], None]]:
        """Take the one place that `narrow` has; call what is yielded to give it back sooner."""
        body = {
            "model": self.pair.model,
            "messages": [{"role": "user", "content": "go on"}],
            "max_tokens": 3900,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"authorization": f"Bearer {KEY}"}
        url = f"{self.narrow.url}{CHAT}"
        with (
            httpx2.Client(trust_env=False, timeout=30.0) as client,
            client.stream("POST", url, json=body, headers=headers) as answer,
        ):
            answer.raise_for_status()
            yield answer.close


def counts(process: Specswitch) -> Counts:
    """The requests that have ended, by endpoint and outcome; those with none left out."""
    found: Counts = Counter()
    for sample in process.samples():
        if sample.name == "specswitch_requests_total":
            found[sample.labels["endpoint"], sample.labels["outcome"]] += int(sample.value)
    return +found


def _quiet(process: Specswitch) -> bool:
    return process.metric("open_requests") == 0 and process.metric("in_flight") == 0
