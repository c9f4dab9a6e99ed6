"""The links to the servers: what of them is one's own, and what stays of one that is replaced."""

from dataclasses import replace

from proxy import wiring
from proxy.config import load
from proxy.control.prober import ProbeRules
from proxy.core.dispatch import Dispatcher
from proxy.core.words import UpstreamName
from proxy.data.upstream import EngineConnection
from proxy.links import Link, Links, build_link
from tests.harness.pair import BASE, SETTINGS, SPEC, Recorder

CONFIG = load(
    file=None,
    env={},
    overrides={
        "upstreams.spec.url": "http://127.0.0.1:1",
        "upstreams.base.url": "http://127.0.0.1:2",
        "timeouts.idle_connection": 3.0,
    },
)

TIMEOUTS = wiring.timeouts_of(CONFIG)


def link(name: UpstreamName) -> Link:
    """To a server that is not there."""
    dispatcher = Dispatcher(SETTINGS, Recorder(), now=0.0)
    return build_link(CONFIG, name, dispatcher, clock=lambda: 0.0)


def both() -> Links:
    """To two of them."""
    return Links({name: link(name) for name in UpstreamName})


def use(links: Links, name: UpstreamName) -> EngineConnection:
    """A connection to `name` that a request has."""
    pool = links[name].pool
    engine = EngineConnection(pool)
    pool._active.add(engine)
    return engine


def test_what_is_replaced_serves_what_runs_on_it() -> None:
    """Its connections count until the last of them has ended, and none of them is kept."""
    links = both()
    links[SPEC].pool.keep(use(links, SPEC))
    running = use(links, SPEC)
    use(links, BASE)
    assert (links.connections(SPEC), links.connections(BASE)) == ((1, 1), (1, 0))
    old, new = links[SPEC], link(SPEC)
    links.exchange(SPEC, new)
    use(links, SPEC)
    assert links[SPEC] is new
    assert links.sides == {SPEC: new.side, BASE: links[BASE].side}
    assert links.findings[SPEC] is new.prober.findings
    assert (links.connections(SPEC), links.connections(BASE)) == ((2, 0), (1, 0))
    links.sweep(1.0)
    assert links.pools == [new.pool, links[BASE].pool, old.pool]
    old.pool.keep(running)
    links.sweep(1.0)
    assert links.pools == [new.pool, links[BASE].pool]
    assert links.connections(SPEC) == (1, 0)


def test_what_is_kept_for_too_long_is_closed() -> None:
    """To either server, by the time that is set now."""
    links = both()
    for name in UpstreamName:
        links[name].pool.keep(use(links, name))
    links.sweep(3.0)
    assert [links.connections(name) for name in UpstreamName] == [(0, 1), (0, 1)]
    rules = ProbeRules(path="/health", interval=1.0, timeout=1.0)
    links.set_to(rules, replace(TIMEOUTS, idle_connection=2.0))
    links.sweep(3.0)
    assert [links.connections(name) for name in UpstreamName] == [(0, 0), (0, 0)]


def test_a_connection_may_be_in_the_making_for_what_is_set_now() -> None:
    """To either server; from the start on, what is configured."""
    links = both()
    assert [links[name].pool.timeouts.connect for name in UpstreamName] == [2.0, 2.0]
    links.set_to(wiring.probes_of(CONFIG), replace(TIMEOUTS, connect=0.5))
    assert [links[name].pool.timeouts.connect for name in UpstreamName] == [0.5, 0.5]


def test_other_rules_are_for_both_probers() -> None:
    """From their next round on."""
    links, rules = both(), ProbeRules(path="/other", interval=2.0, timeout=0.5)
    links.set_to(rules, TIMEOUTS)
    assert [links[name].prober._rules for name in UpstreamName] == [rules, rules]
