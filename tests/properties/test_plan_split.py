"""A plan that fits never takes more than there is, and more memory never makes it worse."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.core.words import Topology
from proxy.tools.plan.quantities import GIB
from proxy.tools.plan.sizes import KvDtype, KvShape, Model
from proxy.tools.plan.split import Plan, Server, plan
from proxy.tools.plan.wanted import Drafts, Reserves, Wanted

SHAPES = st.builds(
    KvShape,
    layers=st.integers(1, 130),
    heads=st.integers(1, 64),
    head_dim=st.sampled_from([64, 80, 128, 256]),
)
OPTIONAL_SIZE = st.none() | st.integers(0, 12 * GIB)
RESERVES = st.builds(
    Reserves,
    gpu_reserved=st.integers(0, 4 * GIB),
    runtime=OPTIONAL_SIZE,
    graphs=OPTIONAL_SIZE,
    activations=OPTIONAL_SIZE,
    margin=st.integers(0, 8 * GIB),
)


@st.composite
def pairs(draw: st.DrawFn) -> Wanted:
    """Any pair, likely to be near what fits."""
    gpu_bytes = draw(st.integers(GIB, 200 * GIB))
    gpus = draw(st.sampled_from([1, 2, 4, 8]))
    model, draft = draw(SHAPES), draw(SHAPES)
    weights = round(gpu_bytes * gpus * draw(st.floats(0.0, 0.6))) + 1
    shares = st.none() | st.just((draft.layers, model.layers))
    return Wanted(
        gpu_bytes=gpu_bytes,
        gpus=gpus,
        topology=draw(st.sampled_from(Topology)),
        model=Model(weight_bytes=weights, kv=model),
        draft=Model(weight_bytes=draw(st.integers(1, weights)), kv=draft),
        draft_share=draw(shares),
        context=draw(st.integers(1, 200_000)),
        spec_running=draw(st.integers(1, 512)),
        base_running=draw(st.integers(1, 4096)),
        kv_dtype=draw(st.sampled_from(KvDtype)),
        drafts=Drafts(steps=draw(st.integers(1, 8)), topk=draw(st.integers(1, 8)), tokens=8),
        spec_share=draw(st.floats(0.0, 1.0)),
        chunk=draw(st.none() | st.sampled_from([512, 8192, 16384])),
        reserves=draw(RESERVES),
    )


def sglang_kv(free: float, fraction: float, loaded: float) -> float:
    """Bytes of the KV cache, as `_profile_available_bytes` of SGLang 0.5.23 computes them."""
    slack = free * (1 - fraction)
    return (free - loaded) - slack


def launched(free: float, server: Server) -> float:
    """What is left of `free` once a server is ready, before its first long prompt."""
    one = server.demand
    measured = free - one.runtime
    tokens = sglang_kv(measured, server.fraction, one.loaded) / one.token_charged
    assert tokens >= one.least_tokens - 1e-3
    assert tokens >= server.kv_tokens - 1e-3
    return measured - one.loaded - tokens * one.token_taken - one.started


def servers(made: Plan) -> tuple[Server, Server]:
    """Of a plan that fits."""
    assume(made.servers is not None)
    assert made.servers is not None
    return made.servers


@given(pairs(), st.booleans())
def test_what_is_planned_can_be_launched(wanted: Wanted, grown: bool) -> None:  # noqa: FBT001 - drawn
    """In launch order, whether or not the first has taken its activations by then.

    Each has its request of full context, and what was to be left free is.
    """
    spec, base = servers(plan(wanted))
    total = float(wanted.gpu_bytes - wanted.reserves.gpu_reserved)
    margin = wanted.reserves.margin - 1e-6 * wanted.gpu_bytes
    if wanted.topology is Topology.SEPARATE:
        for server in (spec, base):
            assert launched(total, server) - server.demand.activations >= margin
        return
    taken = spec.demand.activations if grown else 0
    left = launched(total, spec) - taken
    assert base.free_least - 1 <= left - base.demand.runtime <= base.free_most + 1
    left = launched(left, base) + taken - spec.demand.activations - base.demand.activations
    assert left >= margin


@given(pairs())
def test_fractions_are_what_sglang_takes(wanted: Wanted) -> None:
    """Between 0 and 1, with three digits; caps are at least one sequence."""
    for server in servers(plan(wanted)):
        assert 0 < server.fraction < 1
        assert round(server.fraction, 3) == server.fraction
        assert 1 <= server.running <= server.demand.running


@given(pairs(), st.floats(1.0, 3.0))
def test_more_memory_never_makes_a_plan_unfit(wanted: Wanted, factor: float) -> None:
    """Nor is less of it missing with less."""
    made = plan(wanted)
    larger = plan(replace(wanted, gpu_bytes=round(wanted.gpu_bytes * factor)))
    assert larger.fits or not made.fits
    if made.chunk == larger.chunk and not larger.fits:
        assert larger.short <= made.short + 1


@given(pairs())
def test_a_plan_fits_or_says_what_is_missing(wanted: Wanted) -> None:
    """One of the two, whatever is asked for."""
    made = plan(wanted)
    assert made.fits == (made.short <= 0)
    assert made.fits == (made.servers is not None)


@given(pairs())
def test_what_is_missing_is_enough(wanted: Wanted) -> None:
    """With so much more on each GPU, and a hundredth, it fits: what is said is not too little."""
    made = plan(wanted)
    assume(not made.fits)
    spec = made.demands[0]
    assume(spec.excess <= 2)
    # What the second server may not take while the first has not grown is not linear in memory.
    more = made.short * 1.01 + spec.activations + 1
    assert plan(replace(wanted, gpu_bytes=round(wanted.gpu_bytes + more))).fits
