"""What a speculative SGLang does otherwise than a plain one; through specswitch it is as on base.

Asked of spec itself, each request here is answered wrongly or not at all. Through specswitch, with
the operator saying `spec` where the rule is a strict one, each is answered as base answers it.

Not to be seen on a CPU: that `min_p` is ignored, since verification is greedy there.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import httpx2
import pytest

from proxy.core.words import UpstreamName
from tests.engines.pair import BASE, SPEC, EnginePair, wait_until
from tests.harness.process import Specswitch

CONTEXT = 256
RESERVED = 4  # max(topk 1 x steps 3, draft tokens 4)
EXTRA = (
    f"--context-length={CONTEXT}",
    "--page-size=1",  # for beams
    "--enable-custom-logit-processor",
)
# What SGLang's to_str makes of a processor: a class by its name, here in pickle's plainest form.
FORBIDDING = json.dumps(
    {
        "callable": (
            b"csglang.srt.sampling.custom_logit_processor\nDisallowedTokensLogitsProcessor\n."
        ).hex()
    }
)
Body = dict[str, object]


@dataclass(frozen=True)
class Scene:
    """The pair, and specswitch in front of it."""

    spec: str
    base: str
    proxy: Specswitch

    def ask(self, where: str, path: str, body: Body) -> httpx2.Response:
        """Its answer to a POST."""
        with httpx2.Client(trust_env=False, timeout=60.0) as client:
            return client.post(where + path, json=body)

    def say(self, where: str, **sampling: object) -> Body:
        """What /generate says, greedily: text, tokens, why it ended."""
        return said(self.ask(where, "/generate", asking(**sampling)))

    def decisions(self, reason: str) -> float:
        """How often base was given a place for that reason."""
        return self.proxy.metric("decisions_total", upstream="base", reason=reason)


def asking(**sampling: object) -> Body:
    """A greedy request for 60 tokens."""
    fields = {"temperature": 0, "max_new_tokens": 60, **sampling}
    beside = {name: fields.pop(name) for name in ("custom_logit_processor",) if name in fields}
    return {"text": "hello", "sampling_params": fields, **beside}


def said(answer: httpx2.Response) -> Body:
    """What stays the same from one answer to an equal one."""
    assert answer.status_code == 200, answer.text
    told = answer.json()
    meta = told["meta_info"]
    return {
        "ids": told["output_ids"],
        "tokens": meta["completion_tokens"],
        "end": meta["finish_reason"]["type"],
    }


@contextmanager
def restarted(engines: EnginePair) -> Iterator[None]:
    """Both servers with a short context and what some of the requests need."""
    for name, usual in ((UpstreamName.SPEC, SPEC), (UpstreamName.BASE, BASE)):
        engines[name].kill()
        engines[name].start(replace(usual, extra=EXTRA))
    for name in UpstreamName:
        engines[name].wait_until_ready()
    yield


@pytest.fixture(scope="module")
def scene(engines: EnginePair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """specswitch, which has read from spec how much of the context it keeps."""
    with (
        restarted(engines),
        Specswitch(
            tmp_path_factory.mktemp("eligibility") / "specswitch.log",
            spec_url=engines.spec.url,
            base_url=engines.base.url,
            policy_crossover=4,
            health_interval=0.2,
        ) as proxy,
    ):
        wait_until(lambda: proxy.state()["mode"] == "spec", "speculation is on")
        yield Scene(engines.spec.url, engines.base.url, proxy)


@pytest.fixture(autouse=True)
def _as_usual(scene: Scene) -> None:
    """Instead of the folder's: this file has servers of its own kind, and kills none."""
    scene.proxy.control("auto")


def test_a_plain_request_is_answered_alike_and_by_spec(scene: Scene) -> None:
    """So what differs below differs by what is asked."""
    plain = scene.say(scene.spec)

    assert plain == scene.say(scene.base)
    answer = scene.ask(scene.proxy.url, "/generate", asking())
    assert answer.headers["x-specswitch-upstream"] == "spec"
    assert said(answer) == plain


@pytest.mark.parametrize(
    ("field", "value"),
    [("frequency_penalty", -2), ("presence_penalty", -2), ("repetition_penalty", 0.5)],
)
def test_penalties_are_bent(scene: Scene, field: str, value: float) -> None:
    """Below their neutral value, so that words come again: spec has not counted them all."""
    right = scene.say(scene.base, **{field: value})

    assert scene.say(scene.spec, **{field: value}) != right
    assert _as_base(scene, "penalties", asking(**{field: value})) == right


def test_min_tokens_are_miscounted(scene: Scene) -> None:
    """The stop token comes twentieth and is forbidden for ten tokens: only base stops at it."""
    ids = scene.say(scene.base)["ids"]
    assert isinstance(ids, list)
    asked = {"stop_token_ids": [ids[20]], "min_new_tokens": 10}
    right = scene.say(scene.base, **asked)

    assert (right["tokens"], right["end"]) == (21, "stop")
    wrong = scene.say(scene.spec, **asked)["tokens"]
    assert isinstance(wrong, int)
    assert wrong > 21
    assert _as_base(scene, "min_tokens", asking(**asked)) == right


def test_a_logit_processor_is_ignored(scene: Scene) -> None:
    """It forbids a token that spec writes all the same."""
    ids = scene.say(scene.base)["ids"]
    assert isinstance(ids, list)
    forbidden = {"token_ids": [ids[5]]}
    asked = {"custom_logit_processor": FORBIDDING, "custom_params": forbidden}
    right, wrong = scene.say(scene.base, **asked), scene.say(scene.spec, **asked)

    assert isinstance(right["ids"], list)
    assert ids[5] not in right["ids"]
    assert wrong["ids"] == ids
    assert _as_base(scene, "custom_logit_processor", asking(**asked)) == right


@pytest.mark.parametrize(
    ("rule", "body", "words"),
    [
        ("beam_search", asking(beam_width=4, n=2, max_new_tokens=8), "Beam search"),
        ("sampling_mask", {**asking(top_k=1), "return_sampling_mask": True}, "sampling_mask"),
    ],
)
def test_what_spec_refuses(scene: Scene, rule: str, body: Body, words: str) -> None:
    """400 there, naming it; served on base."""
    refused = scene.ask(scene.spec, "/generate", body)
    assert refused.status_code == 400
    assert words in refused.text
    assert scene.ask(scene.base, "/generate", body).status_code == 200

    scene.proxy.control("spec")
    answer = scene.ask(scene.proxy.url, "/generate", body)
    assert answer.status_code == 200
    assert answer.headers["x-specswitch-reason"] == f"eligibility:{rule}"


def _as_base(scene: Scene, rule: str, body: Body) -> Body:
    """What specswitch answers, of which it is seen that it came from base for that rule."""
    scene.proxy.control("spec")
    before = scene.decisions(f"eligibility:{rule}")
    answer = scene.ask(scene.proxy.url, "/generate", body)

    assert answer.headers["x-specswitch-upstream"] == "base"
    assert answer.headers["x-specswitch-reason"] == f"eligibility:{rule}"
    assert scene.decisions(f"eligibility:{rule}") == before + 1
    return said(answer)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"input_ids": [10] * 12}),
        ("/v1/completions", {"model": "tiny", "prompt": [10] * 12, "temperature": 0}),
        ("/v1/completions", {"model": "tiny", "prompt": [[10] * 12], "temperature": 0}),
    ],
)
def test_the_last_tokens_of_the_context(scene: Scene, path: str, body: Body) -> None:
    """12 ids and what spec has room for go to spec; one more is 400 there, and base serves it."""
    for limit, upstream in ((CONTEXT - 12 - RESERVED, "spec"), (CONTEXT - 12, "base")):
        asked = _with_limit(body, limit)
        answer = scene.ask(scene.proxy.url, path, asked)
        assert answer.status_code == 200
        assert answer.headers["x-specswitch-upstream"] == upstream
    assert answer.headers["x-specswitch-reason"] == "eligibility:context_limit"

    one_more = _with_limit(body, CONTEXT - 12 - RESERVED + 1)
    assert scene.ask(scene.spec, path, one_more).status_code == 400
    assert scene.ask(scene.base, path, one_more).status_code == 200
    answer = scene.ask(scene.proxy.url, path, one_more)
    assert answer.headers["x-specswitch-upstream"] == "base"


def _with_limit(body: Body, limit: int) -> Body:
    if "input_ids" in body:
        return {**body, "sampling_params": {"temperature": 0, "max_new_tokens": limit}}
    return {**body, "max_tokens": limit}


def test_a_chat_that_fills_the_context(scene: Scene) -> None:
    """Clients that count tokens themselves ask for all that is left: spec would refuse."""
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
    prompt = scene.ask(scene.base, "/v1/chat/completions", {**chat, "max_tokens": 2}).json()
    left = CONTEXT - prompt["usage"]["prompt_tokens"]
    body = {**chat, "max_tokens": left}

    assert scene.ask(scene.spec, "/v1/chat/completions", body).status_code == 400
    answer = scene.ask(scene.proxy.url, "/v1/chat/completions", body)
    assert answer.status_code == 200
    assert answer.headers["x-specswitch-reason"] == "eligibility:context_limit"
    usual = scene.ask(scene.proxy.url, "/v1/chat/completions", {**chat, "max_tokens": 60})
    assert usual.headers["x-specswitch-upstream"] == "spec"
