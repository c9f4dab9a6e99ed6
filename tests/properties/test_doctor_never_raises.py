"""Whatever two servers say of themselves, doctor judges it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.fields import Fields
from proxy.core.words import UpstreamName
from proxy.tools.doctor.diagnosis import Report, gravest_first
from proxy.tools.doctor.examine import as_json, judge
from proxy.tools.doctor.server_info import ServerInfo
from tests.harness.server_infos import BASE, SPEC, arguments

FIELDS = sorted({*arguments(SPEC), *arguments(BASE), "cuda_graph_config", "cuda_graph_max_bs"})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["EAGLE3", "cpu", "dummy", "model", "--config x", "--a '", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["decode", "max_bs", "memory_usage", "token_capacity", "min_p"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=3,
)
OBJECTS = st.dictionaries(
    st.sampled_from([*FIELDS, "id", "parent", "max_model_len"]), VALUES, max_size=5
)


@st.composite
def servers(draw: st.DrawFn, name: UpstreamName) -> ServerInfo:
    """A server with some fields as they should be, and some that hold anything."""
    odd = draw(OBJECTS)
    shown = Fields({**arguments(name), **odd} if draw(st.booleans()) else odd)
    return ServerInfo(
        name=name,
        url=f"http://127.0.0.1:{draw(st.integers(1, 2))}",
        known=draw(st.booleans()),
        arguments=shown,
        model_info=Fields(draw(OBJECTS)),
        cards=[Fields(each) for each in draw(st.lists(OBJECTS, max_size=2))],
        loads=[Fields(each) for each in draw(st.lists(OBJECTS, max_size=2))],
        generation=draw(st.none() | OBJECTS.map(Fields)),
        draft=draw(st.none() | OBJECTS.map(Fields)),
    )


@pytest.mark.slow
@given(spec=servers(SPEC), base=servers(BASE))
def test_any_two_servers_can_be_judged(spec: ServerInfo, base: ServerInfo) -> None:
    """Each finding has a code, and one that is not fine says why and what to change."""
    findings = list(judge({SPEC: spec, BASE: base}))
    assert all("." in each.code and each.what for each in findings)
    assert all(each.severity == "ok" or (each.why and each.change) for each in findings)
    report = Report(findings=gravest_first(findings), servers={})
    assert as_json(report)
