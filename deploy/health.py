"""The image's health check: GET /livez of the admin listener, which tells that the loop runs.

Not /readyz, which tells of the engines: whoever restarts what is unhealthy would cut what is still
served, and mend nothing. Not on the endpoint, which may speak HTTPS under another name. Exits with
1 and a line where it is not well.
"""

import http.client
import os
import sys

SECONDS = 3.0
"""For each read; whoever answers byte by byte is ended by Docker's own timeout."""
REACHABLE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - told apart only


def fault() -> str | None:
    """What is wrong; None where nothing is."""
    host = os.environ.get("SPECSWITCH_LISTEN_ADMIN_HOST", "").strip()
    port = os.environ.get("SPECSWITCH_LISTEN_ADMIN_PORT", "").strip() or "8001"
    try:
        connection = http.client.HTTPConnection(
            REACHABLE.get(host, host), int(port), timeout=SECONDS
        )
        connection.request("GET", "/livez")
        status = connection.getresponse().status
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"/livez: {str(error) or type(error).__name__}"
    return None if status == http.HTTPStatus.OK else f"/livez: {status}"


if __name__ == "__main__":
    sys.exit(fault())
