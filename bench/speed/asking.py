"""What the bench itself asks: is it there, what does it say?"""

import http.client
import json
from typing import Final

from bench.speed.targets import KEY

PATH: Final = "/v1/chat/completions"
_SECONDS: Final = 5.0
_QUESTION: Final = json.dumps(
    {"model": "tiny", "max_tokens": 64, "messages": [{"role": "user", "content": "are you there?"}]}
)


def get(port: int, path: str) -> bytes:
    """The body of a 200; raises OSError for all else."""
    status, body = _ask(port, "GET", path, None)
    if status != http.client.OK:
        raise OSError(f"GET {path} answers {status}")
    return body


def serves(port: int) -> bool:
    """Whether it passes a request on and the answer back."""
    try:
        status, _ = _ask(port, "POST", PATH, _QUESTION)
    except OSError:
        return False
    return status == http.client.OK


def _ask(port: int, method: str, path: str, body: str | None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"{method} {path}: {error!r}") from error
    finally:
        connection.close()
