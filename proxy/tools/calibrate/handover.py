"""Telling a specswitch that runs to go by what was measured: it reads its files again.

It is asked to do so before the measurement as well, so that a wrong address or token is said at
once and not after ten minutes. That is a reload like any other: what stands in its files counts.
"""

import json
from datetime import datetime
from typing import Final

import httpx2

from proxy.calibration import Calibration
from proxy.core.fields import Fields
from proxy.errors import SpecswitchError
from proxy.tools.asking import connect

_SECONDS: Final = 30.0
"""For an answer; specswitch itself gives its files 10 s (proxy/reload.py)."""
_UNAUTHORIZED: Final = 401


async def reload(url: str, *, token: str | None) -> None:
    """Have the specswitch whose admin listener is at `url` read its configuration again.

    Raises:
        SpecswitchError: nobody answers there, or it refuses; says why.
    """
    async with _admin(url, token) as client:
        await _reload(client, url)


async def hand_over(url: str, calibration: Calibration, *, token: str | None) -> None:
    """The same, and see that it goes by `calibration` from then on.

    Raises:
        SpecswitchError: it does not.
    """
    async with _admin(url, token) as client:
        await _reload(client, url)
        state = Fields(await _json(client, url, "GET", "/admin/state"))
    found = state.within("calibration")
    if _time(found.text("created")) != calibration.created:
        told = "none" if not found else f"the one of {found.text('created')}"
        raise SpecswitchError(
            f"the specswitch at {url} has read its configuration again and goes by another "
            f"calibration than this: {told}; see its policy.calibration, and that N* is not set by "
            "hand (policy.crossover)"
        )


def _admin(url: str, token: str | None) -> httpx2.AsyncClient:
    return connect(url, api_key=token, timeout=_SECONDS)


async def _reload(client: httpx2.AsyncClient, url: str) -> None:
    if "changed" not in Fields(await _json(client, url, "POST", "/admin/reload")):
        raise SpecswitchError(f"what answers at {url} is no admin listener of a specswitch")


async def _json(client: httpx2.AsyncClient, url: str, method: str, path: str) -> object:
    headers = {"content-type": "application/json"}  # it takes no change without
    try:
        answer = await client.request(method, path, headers=headers)
    except httpx2.HTTPError as error:
        why = str(error) or type(error).__name__
        raise SpecswitchError(f"no specswitch answers at {url}: {why}") from error
    try:
        found: object = json.loads(answer.content)
    except (ValueError, RecursionError):
        found = None
    if answer.status_code != httpx2.codes.OK:
        raise SpecswitchError(f"the specswitch at {url} refuses: {_why(answer.status_code, found)}")
    return found


def _why(status: int, found: object) -> str:
    """What a refusal says, in one line."""
    if status == _UNAUTHORIZED:
        return "it asks for another admin token than SPECSWITCH_AUTH_ADMIN_TOKEN holds here"
    fields = Fields(found)
    findings = [
        f"{each.text('path') or ''}: {each.text('message') or ''}" for each in fields.many("errors")
    ]
    message = "; ".join(findings) or fields.within("error").text("message")
    return f"{status}, {message}" if message else f"{status}; is that its admin listener?"


def _time(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
