"""The demo of deploy/kubernetes: simulated engines in place of SGLang."""

import click
import pytest

from proxy.cli import main
from proxy.sim.physics import PROFILES, crossover
from tests.deploy.rendering import FOLDER, Rendered, environment, words

ENGINES = ("spec", "base")


@pytest.fixture(scope="module")
def demo() -> Rendered:
    """The pod without a GPU."""
    return Rendered.of(FOLDER / "demo")


def test_the_demo_is_accepted(demo: Rendered) -> None:
    """The simulated engines' words are a command of specswitch, on the ports that are asked."""
    assert isinstance(main, click.Group)
    for name, port in zip(ENGINES, (30001, 30000), strict=True):
        container = demo.containers()[name]
        assert words(container, "command") == ["specswitch"]
        command, *arguments = words(container, "args")
        with main.commands[command].make_context(command, arguments) as context:
            assert context.params["only"] == name
            assert context.params[f"{name}_port"] == port
            assert context.params["host"] == "127.0.0.1"


def test_the_demo_knows_where_its_profile_crosses(demo: Rendered) -> None:
    """N* by hand is that of the simulated GPU."""
    profile = next(
        word.partition("=")[2]
        for word in words(demo.containers()["spec"], "args")
        if word.startswith("--profile=")
    )
    told = environment(demo)["SPECSWITCH_POLICY_CROSSOVER"]
    assert float(told) == pytest.approx(crossover(PROFILES[profile]), abs=0.05)
