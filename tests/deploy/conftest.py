"""What these tests need beside Python, and what becomes of them where it is not there."""

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

HERE = Path(__file__).parent
NO_SKIP = "DEPLOY_NO_SKIP"
"""Set where everything must be there: in CI a test that cannot run has failed."""


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder; some take minutes."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.deploy)
            item.add_marker(pytest.mark.timeout(300))  # a test's own comes first


def program(name: str, package: str) -> str:
    """The path of `name`; without it the test is skipped with the reason, or fails in CI.

    What a package has brought lies beside this Python, and need not be on the path.
    """
    own = Path(sys.executable).parent
    found = shutil.which(name, path=f"{own}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        unable(f"{name} is not installed (package: {package})")
    return found


def unable(why: str) -> NoReturn:
    """Give the test up, for want of something that is not ours."""
    if os.environ.get(NO_SKIP):
        pytest.fail(f"{why}, and {NO_SKIP} is set", pytrace=False)
    pytest.skip(why)  # a program or an image of others is not there; CI forbids it above
