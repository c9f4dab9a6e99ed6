"""Client keys and the servers' own: who is let in, and what each engine gets to see of them.

The rules are those of the fine print: with keys configured a request needs one of them; a server's
own key replaces whatever the client sent; the client's keys pass on only where nobody here has any.
"""

import ast
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Never, SupportsIndex

import pytest

import proxy
from proxy.core.keys import Keyring, presented
from proxy.core.words import UpstreamName
from tests.harness.client import RawClient, Response
from tests.harness.running import Rig, rig
from tests.harness.upstream import Fin, Received, Send, reply

Headers = tuple[tuple[str, str], ...]

RIGHT, WRONG = "sk-right", "sk-wrong"
OWN = {"spec": "sk-own-of-spec", "base": "sk-own-of-base"}
KEYS = {"team": RIGHT}
KEY_HEADERS = ("authorization", "x-api-key", "api-key")

FAMILIES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/generate"),
    ("POST", "/v1/messages"),
    ("POST", "/open_session"),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/models"),
    ("HEAD", "/v1/models/tiny"),
    ("GET", "/v1/responses/resp_1"),
]

# What a client sends, and whether that is a right key.
OFFERS: list[tuple[Headers, bool]] = [
    ((), False),
    ((("Authorization", f"Bearer {RIGHT}"),), True),
    ((("authorization", f"bearer {RIGHT}"),), True),
    ((("AUTHORIZATION", f"BEARER   {RIGHT}"),), True),
    ((("Authorization", f"Bearer {WRONG}"),), False),
    ((("Authorization", f"Bearer {RIGHT}x"),), False),
    ((("Authorization", f"Bearer {RIGHT[:-1]}"),), False),
    ((("Authorization", f"Bearer {RIGHT}, Bearer {RIGHT}"),), False),
    ((("Authorization", "Basic c2stcmlnaHQ6"),), False),
    ((("Authorization", RIGHT),), False),
    ((("Authorization", f"Token {RIGHT}"),), False),
    ((("Authorization", "Bearer"),), False),
    ((("Authorization", "Bearer "),), False),
    ((("Authorization", ""),), False),
    ((("Authorization", f"Bearer {RIGHT}"), ("Authorization", f"Bearer {WRONG}")), True),
    ((("Authorization", f"Bearer {WRONG}"), ("Authorization", f"Bearer {RIGHT}")), False),
    ((("x-api-key", RIGHT),), True),
    ((("api-key", RIGHT),), True),
    ((("X-Api-Key", WRONG),), False),
    ((("x-api-key", ""), ("api-key", RIGHT)), True),
    ((("x-api-key", WRONG), ("Authorization", f"Bearer {RIGHT}")), False),
    ((("Authorization", f"Bearer {RIGHT}"), ("x-api-key", WRONG), ("api-key", WRONG)), True),
    ((("Authorization", "Basic c2stcmlnaHQ6"), ("x-api-key", RIGHT)), True),
    ((("Cookie", f"api_key={RIGHT}"), ("Proxy-Authorization", f"Bearer {RIGHT}")), False),
    ((("X-Auth-Token", RIGHT),), False),
    ((("Connection", "authorization"), ("Authorization", f"Bearer {RIGHT}")), True),
]
COOKIE = ("Cookie", "session=1")
PROXY = ("Proxy-Authorization", "Basic cHJveHk6cHJveHk=")


def request(
    path: str, headers: Sequence[tuple[str, str]], *, method: str = "POST", body: bytes = b"{}"
) -> bytes:
    """A request with exactly these headers, the same one twice if they say so."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test"]
    lines += [f"{name}: {value}" for name, value in headers]
    if method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body if method == "POST" else b"")


def seen(received: Received, name: str) -> list[str]:
    """The values of the header `name` as an engine got them."""
    return [v for n, v in received.headers if n.lower() == name]


@dataclass(frozen=True)
class Setting:
    """Which keys are configured."""

    clients: bool
    owners: tuple[str, ...]

    @property
    def overrides(self) -> dict[str, object]:
        """The same as configuration."""
        made: dict[str, object] = {"auth.api_keys": KEYS} if self.clients else {}
        return made | {f"upstreams.{name}.api_key": OWN[name] for name in self.owners}

    def expected(self, name: str, offer: Headers) -> dict[str, list[str]]:
        """What the engine `name` has to see of a request with the headers of `offer`."""
        if name in self.owners:
            return {"authorization": [f"Bearer {OWN[name]}"], "x-api-key": [], "api-key": []}
        if self.clients:
            return {key: [] for key in KEY_HEADERS}
        named = {v for n, v in offer if n == "Connection"}
        return {
            key: [v.strip() for n, v in offer if n.lower() == key and key not in named]
            for key in KEY_HEADERS
        }


SETTINGS = [
    Setting(clients, owners)
    for clients in (False, True)
    for owners in ((), ("spec",), ("base",), ("spec", "base"))
]


@asynccontextmanager
async def keyed(setting: Setting, **more: object) -> AsyncIterator[Rig]:
    """A rig with these keys."""
    async with rig(**{**setting.overrides, **more}) as it:  # type: ignore[arg-type]  # keys of the configuration only
        yield it


async def ask(client: RawClient, raw: bytes) -> Response:
    """The answer to one request."""
    client.send(raw)
    return await client.response(head_only=raw.startswith(b"HEAD"))


def engines_saw(it: Rig) -> Iterator[tuple[str, Received]]:
    """What came to the engines since the last look, with the engine's name."""
    for name in ("spec", "base"):
        upstream = it.upstream(name)
        for received in upstream.requests:
            yield name, received
        upstream.requests.clear()


# Who is let in, and what the engines see -------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
async def test_the_whole_matrix(setting: Setting) -> None:
    """Client keys x the servers' own x what was sent x every family of paths.

    sgl-project/sglang#27048, BerriAI/litellm#12090: the client's key went to the backend, or was
    replaced only where it stood in `authorization`. Nothing empty is ever made up.
    """
    async with keyed(setting) as it:
        for (offer, right), (method, path) in _pairs():
            client = await it.client()
            raw = request(path, (*offer, COOKIE, PROXY), method=method)
            response = await ask(client, raw)
            client.close()
            let_in = right or not setting.clients
            assert response.status == (200 if let_in else 401), (offer, path)
            saw = list(engines_saw(it))
            assert len(saw) == int(let_in), (offer, path)
            for name, received in saw:
                what = {key: seen(received, key) for key in KEY_HEADERS}
                assert what == setting.expected(name, offer), (offer, path)
                assert seen(received, "proxy-authorization") == []
                assert COOKIE[1] in seen(received, "cookie")


def _pairs() -> Iterator[tuple[tuple[Headers, bool], tuple[str, str]]]:
    """Every offer with every family once, the two rotating against each other for the rest."""
    for number, offer in enumerate(OFFERS):
        yield offer, FAMILIES[number % len(FAMILIES)]
        yield offer, FAMILIES[(number * 3 + 1) % len(FAMILIES)]
    for family in FAMILIES:
        yield OFFERS[1], family
        yield OFFERS[4], family


@pytest.mark.parametrize("clients", [False, True])
@pytest.mark.parametrize("fault", ["refused", "503"])
async def test_a_retry_carries_the_other_servers_key(clients: bool, fault: str) -> None:  # noqa: FBT001 - a parameter
    """Where a request goes on to the other server it goes with that one's key and no other."""
    setting = Setting(clients, ("spec", "base"))
    async with keyed(setting, health__interval=5.0) as it:
        if fault == "refused":
            await it.spec.stop()
        else:
            it.spec.script(Send(reply(b"{}", status="503 Service Unavailable")))
        client = await it.client()
        response = await ask(client, request("/generate", OFFERS[1][0]))
        assert response.header("x-specswitch-reason") == "retry"
        (received,) = it.base.requests
        assert seen(received, "authorization") == [f"Bearer {OWN['base']}"]
        for first in it.spec.requests:
            assert seen(first, "authorization") == [f"Bearer {OWN['spec']}"]


async def test_a_retry_to_a_server_without_a_key_carries_none() -> None:
    """The first server's key is not the second one's, and a client's key is nobody's here."""
    async with keyed(Setting(clients=True, owners=("spec",))) as it:
        it.spec.script(Send(reply(b"{}", status="503 Service Unavailable")))
        client = await it.client()
        assert (await ask(client, request("/generate", OFFERS[1][0]))).status == 200
        (received,) = it.base.requests
        assert not any(seen(received, key) for key in KEY_HEADERS)


async def test_a_replaced_connection_carries_the_same_key() -> None:
    """A kept connection that dies is replaced by a fresh one, and the key goes with the request."""
    async with keyed(Setting(clients=True, owners=("spec", "base"))) as it:
        client = await it.client()
        raw = request("/generate", OFFERS[1][0])
        assert (await ask(client, raw)).status == 200
        it.spec.script(Fin())
        assert (await ask(client, raw)).status == 200
        assert [seen(each, "authorization") for each in it.spec.requests] == [
            [f"Bearer {OWN['spec']}"]
        ] * 3


async def test_probes_carry_the_servers_own_key() -> None:
    """And nothing of any client's; a server that asks for its key would else never be healthy."""
    async with keyed(Setting(clients=True, owners=("spec", "base"))) as it:
        client = await it.client()
        assert (await ask(client, request("/v1/models", OFFERS[1][0], method="GET"))).status == 200
        assert all(it.healthy(name) for name in UpstreamName)


async def test_each_request_needs_its_own_key() -> None:
    """A connection is nobody: what one request on it has shown does not hold for the next."""
    async with keyed(Setting(clients=True, owners=())) as it:
        client = await it.client()
        good, bad = request("/generate", OFFERS[1][0]), request("/generate", ())
        client.send(good + bad + good)
        assert [(await client.response()).status for _ in range(3)] == [200, 401, 200]
        assert len(it.spec.requests) == 2


@pytest.mark.parametrize(
    "path", [f"/generate?api_key={RIGHT}", f"/generate?key={RIGHT}", f"/v1/models?token={RIGHT}"]
)
async def test_a_key_in_the_url_is_none(path: str) -> None:
    """URLs end up in everybody's logs; a key there is not looked at."""
    async with keyed(Setting(clients=True, owners=())) as it:
        client = await it.client()
        assert (await ask(client, request(path, ()))).status == 401
        assert not it.spec.requests + it.base.requests


# Odd keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "Bearer sk-schlüssel",
        "Bearer \xff\xfe\x80",
        "Bearer " + "ä" * 5000,
        "Bearer " + "x" * 30_000,
        "Bearer sk-right\t",
        "Bearer\tsk-right",
        "Bearer sk-right\x0b",
        'Bearer "sk-right"',
        "Bearer %73k-right",
    ],
)
async def test_odd_keys_are_wrong_keys(value: str) -> None:
    """Not ASCII, very long, quoted or with odd spaces: 401 (or 400 for control bytes), no 500.

    A tab around a key is white space as HTTP has it and belongs to no key.
    """
    async with keyed(Setting(clients=True, owners=())) as it:
        client = await it.client()
        response = await ask(client, request("/generate", (("Authorization", value),)))
        expected = {"Bearer sk-right\t": 200, "Bearer sk-right\x0b": 400}.get(value, 401)
        assert response.status == expected
        assert len(it.spec.requests) == (expected == 200)


async def test_long_keys_and_keys_that_begin_alike(caplog: pytest.LogCaptureFixture) -> None:
    """A key of 10 kB is a key, and of keys that begin alike each is its own; the log has names."""
    keys = {"a": "sk-a", "ab": "sk-ab", "abc": "sk-abc", "long": "sk-" + "k" * 10_000}
    with caplog.at_level(logging.INFO, "proxy.requests"):
        async with rig(auth__api_keys=keys) as it:
            client = await it.client()
            for key in [*keys.values(), "sk-", "sk-abcd", keys["long"][:-1], keys["long"] + "k"]:
                headers = (("Authorization", f"Bearer {key}"),)
                expected = 200 if key in keys.values() else 401
                assert (await ask(client, request("/generate", headers))).status == expected
            assert len(it.spec.requests) == len(keys)
    told = [getattr(record, "fields", {}) for record in caplog.records]
    assert [fields["key_name"] for fields in told if "key_name" in fields] == list(keys)
    assert "sk-a" not in str(told)


# The refusal -----------------------------------------------------------------------------------


async def test_the_refusal_in_both_shapes() -> None:
    """OpenAI's, and Anthropic's on its paths; nothing in it says how near the guess was."""
    async with keyed(Setting(clients=True, owners=())) as it:
        client = await it.client()
        bodies = set()
        for offer in OFFERS[0][0], OFFERS[4][0], OFFERS[5][0]:
            openai = await ask(client, request("/generate", offer))
            assert (openai.status, openai.code) == (401, "invalid_api_key")
            assert openai.header("www-authenticate") == "Bearer"
            assert openai.header("x-request-id")
            anthropic = await ask(client, request("/v1/messages", offer))
            assert anthropic.body.startswith(b'{"type": "error", "error": {"type": "authentic')
            counted = await ask(client, request("/v1/messages/count_tokens", offer))
            assert counted.body == anthropic.body
            bodies |= {openai.body, anthropic.body}
        assert len(bodies) == 2
        assert it.metric("responses_total", upstream="none", code="401") == 9


@pytest.mark.parametrize("expects", [True, False])
async def test_no_body_is_read_without_a_key(expects: bool) -> None:  # noqa: FBT001 - a parameter
    """Answered after the head: no 100 Continue, no byte of the body held, the connection ended."""
    async with keyed(Setting(clients=True, owners=())) as it:
        client = await it.client()
        expect = "Expect: 100-continue\r\n" if expects else ""
        head = f"POST /generate HTTP/1.1\r\nHost: a\r\n{expect}Content-Length: 50000000\r\n\r\n"
        client.send(head.encode() + (b"" if expects else b"x" * 1000))
        response = await client.response()
        assert response.status == 401
        assert response.header("connection") == "close"
        for _ in range(20):
            client.send(b"x" * 65536)
            assert it.app.front.buffered == 0
        assert await client.at_end()
        assert it.app.front.buffered == 0
        assert not it.spec.requests


async def test_a_small_body_that_is_there_is_passed_over() -> None:
    """The connection stays of use, and the body is not taken for a request."""
    async with keyed(Setting(clients=True, owners=())) as it:
        client = await it.client()
        inner = request("/generate", OFFERS[1][0])
        assert (await ask(client, request("/generate", (), body=inner))).status == 401
        assert (await ask(client, request("/generate", OFFERS[1][0]))).status == 200
        assert len(it.spec.requests) == 1


async def test_the_key_comes_before_all_else() -> None:
    """401 before 404, 405 and 413: who has no key learns nothing of what there is."""
    async with keyed(Setting(clients=True, owners=()), limits__max_body_bytes=1) as it:
        for raw in (
            request("/nowhere", ()),
            request("/generate", (), method="DELETE"),
            request("/flush_cache", ()),
            request("/livez", ()),
            request("/generate", (), body=b"xx"),
            request("/generate", (), method="OPTIONS"),
        ):
            client = await it.client()
            assert (await ask(client, raw)).status == 401, raw


async def test_a_thousand_guesses_cost_the_engines_nothing() -> None:
    """Nothing is sent, queued or kept for a wrong key, and a right one is served meanwhile."""
    async with keyed(Setting(clients=True, owners=())) as it:
        guesser, user = await it.client(), await it.client()
        for _ in range(10):
            guesser.send(request("/generate", OFFERS[4][0]) * 100)
            assert (await ask(user, request("/generate", OFFERS[1][0]))).status == 200
            for _ in range(100):
                assert (await guesser.response()).status == 401
        assert len(it.spec.requests) == 10
        assert it.app.front.open_requests == 0


# Time tells nothing ----------------------------------------------------------------------------


class Opaque(bytes):
    """A guess that may be digested and nothing else: to compare it is to leak it."""

    def __eq__(self, other: object) -> Never:
        raise AssertionError("a key was compared")

    def __hash__(self) -> Never:
        raise AssertionError("a key was looked up as it is")

    def __getitem__(self, at: SupportsIndex | slice) -> Never:
        raise AssertionError("a key was taken apart")


def test_a_guess_is_digested_and_never_compared() -> None:
    """What a look-up's time tells is about a digest, which says nothing of the key."""
    ring = Keyring(KEYS)

    assert ring.name_of(Opaque(RIGHT.encode())) == "team"
    assert ring.name_of(Opaque(WRONG.encode())) is None


SECRET_NAMES = {"key", "token", "secret", "api_key", "admin_token", "guess", "given", "bearer"}
# Not key material, though so called: a field of an object, a word for what is generated.
# The configuration's keys among themselves: nobody's guess is among them.
INNOCENT = {("config/values.py", "_each_key_once"), ("config/model.py", "_admin_key")}


def comparisons(source: Path) -> Iterator[tuple[str, str]]:
    """Functions in which a value that is called like a secret is compared by `==` or the like."""
    for function in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Compare):
                sides = (node.left, *node.comparators)
                plain = not all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
                if plain and any(_is_called_secret(side) for side in sides):
                    yield function.name, ast.unparse(node)


def _is_called_secret(node: ast.expr) -> bool:
    name = getattr(node, "id", None) or getattr(node, "attr", None)
    return name is not None and str(name).strip("_") in SECRET_NAMES


def test_no_secret_is_compared_by_equality() -> None:
    """In the whole package: keys go through a digest or `hmac.compare_digest`."""
    root = Path(proxy.__file__).parent
    found = {
        (path.relative_to(root).as_posix(), function): what
        for path in root.rglob("*.py")
        if not path.is_relative_to(root / "sim")  # it has no keys; its tokens are those of text
        for function, what in comparisons(path)
    }

    assert set(found) <= INNOCENT, found


def test_the_rule_finds_what_it_is_for(tmp_path: Path) -> None:
    """A comparison as one would write it by accident is found."""
    bad = tmp_path / "bad.py"
    bad.write_text("def f(key, self):\n    return key == self._token or key in self.names\n")

    assert [what for _, what in comparisons(bad)] == ["key == self._token", "key in self.names"]


@pytest.mark.parametrize("size", [0, 1, 10_000, 1_000_000])
def test_any_size_of_guess(size: int) -> None:
    """Digests have one length, whatever was guessed."""
    ring = Keyring({"team": "k" * 10_000})
    key = presented([(b"x-api-key", b"k" * size)])

    assert ring.name_of(key) == ("team" if size == 10_000 else None)


def test_many_keys_are_one_look_up() -> None:
    """A thousand keys: the last one and a wrong one are found out by the same single digest."""
    ring = Keyring({f"name-{number}": f"sk-{number}" for number in range(1000)})

    assert ring.name_of(Opaque(b"sk-999")) == "name-999"
    assert ring.name_of(Opaque(b"sk-1000")) is None
