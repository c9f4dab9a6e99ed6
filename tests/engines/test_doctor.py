"""Doctor against two real SGLang servers: what it says of a pair that is known to be good."""

import pytest

from proxy.control.engine import connect, read_identity
from proxy.core.words import UpstreamName
from proxy.tools.doctor.diagnosis import Severity
from proxy.tools.doctor.examine import examine
from tests.engines.pair import EnginePair


@pytest.mark.asyncio
async def test_the_real_pair_is_fine(engines: EnginePair) -> None:
    """Nothing is wrong with it, and its drafts are kept as its models were made for."""
    report = await examine(engines.spec.url, engines.base.url)
    grave = [each for each in report.findings if each.severity.rank > Severity.NOTE.rank]
    assert grave == []
    assert report.acceptance_length is not None
    assert 2.0 < report.acceptance_length <= 4.0
    fine = {each.code for each in report.of(Severity.OK)}
    assert {"live.greedy", "live.prompt_tokens", "live.error_shape", "pair.chat_template"} <= fine
    assert {"spec.draft_context", "server.sampling_defaults"} <= fine
    assert "pair.unknown" not in {each.code for each in report.findings}


@pytest.mark.asyncio
async def test_the_identity_is_the_one_that_the_proxy_reads(engines: EnginePair) -> None:
    """A calibration for what doctor read is one for what serves."""
    report = await examine(engines.spec.url, engines.base.url, requests=False)
    for name in UpstreamName:
        async with connect(engines[name].url, api_key=None, tls=None, timeout=10.0) as client:
            assert report.servers[name].identity == await read_identity(client)
