"""What is built for one configured upstream."""

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from proxy.config import Config, load
from proxy.core.dispatch import Dispatcher
from proxy.core.words import UpstreamName
from proxy.errors import ConfigError
from proxy.links import Link, build_link
from tests.harness.pair import SETTINGS, Recorder

SPEC = UpstreamName.SPEC


async def linked(config: Config) -> Link:
    """The link to spec."""
    dispatcher = Dispatcher(SETTINGS, Recorder(), now=0.0)
    return build_link(config, SPEC, dispatcher, clock=asyncio.get_running_loop().time)


def config(url: str, ca_file: Path | None = None) -> Config:
    """With spec at `url`."""
    keys: dict[str, object] = {"upstreams.spec.url": url}
    if ca_file is not None:
        keys["upstreams.spec.ca_file"] = str(ca_file)
    return load(file=None, env={}, overrides=keys)


async def test_requests_and_probes_believe_the_same() -> None:
    """One context for both, which asks for a certificate; none without TLS."""
    secure = await linked(config("https://engine:1"))
    context = secure.pool._tls
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    transport = secure.prober._client._transport
    assert transport._pool._ssl_context is context  # type: ignore[attr-defined]
    assert (await linked(config("http://engine:1"))).pool._tls is None


async def test_an_authority_that_cannot_be_read(tmp_path: Path) -> None:
    """It may go between the check of the configuration and its use: named by its key."""
    path = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    checked = config("https://engine:1", path)
    await linked(checked)
    path.unlink()
    with pytest.raises(ConfigError) as raised:
        await linked(checked)
    assert raised.value.findings[0][0] == "upstreams.spec.ca_file"
