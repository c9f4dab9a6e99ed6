"""Keys of servers come from the environment: a flag would stand in the list of processes."""

import os

NOTE = """
\b
Environment:
  SPECSWITCH_UPSTREAMS_SPEC_API_KEY, SPECSWITCH_UPSTREAMS_BASE_API_KEY
       the servers' keys, where they ask for one; secrets have no flag
"""


def key_of(name: str) -> str | None:
    """The key of the server called `name`, None where none is set."""
    return os.environ.get(f"SPECSWITCH_UPSTREAMS_{name.upper()}_API_KEY") or None


def admin_token() -> str | None:
    """What a specswitch asks for before it lets itself be changed, None where none is set."""
    return os.environ.get("SPECSWITCH_AUTH_ADMIN_TOKEN") or None


def keys_of_endpoints() -> list[str]:
    """`[NAME=]KEY`, separated by commas, for `specswitch bench`."""
    given = os.environ.get("SPECSWITCH_BENCH_API_KEY", "")
    return [key for part in given.split(",") if (key := part.strip())]
