"""The errors are those of the contract, each with its status, its code and whose fault it is."""

import pytest

from proxy import errors
from proxy.errors import (
    AdministrationFailed,
    BadRequest,
    BodyTooLarge,
    ConfigError,
    Draining,
    EngineError,
    HeadersTooLarge,
    Ineligible,
    InternalError,
    InvalidApiKey,
    MethodNotAllowed,
    NotFound,
    NotSupported,
    NoUpstream,
    OriginNotAllowed,
    Overloaded,
    PartialFailure,
    QueueTimeout,
    Refusal,
    RequestTimeout,
    SpecswitchError,
    UpgradeRequired,
    UpstreamConnect,
    UpstreamFault,
    UpstreamReset,
    UpstreamTimeout,
)

CLIENT = "invalid_request_error"
TABLE: dict[type[Refusal], tuple[int, str, str, bool]] = {
    BadRequest: (400, "bad_request", CLIENT, True),
    InvalidApiKey: (401, "invalid_api_key", "authentication_error", False),
    OriginNotAllowed: (403, "origin_not_allowed", "permission_error", False),
    NotFound: (404, "not_found", CLIENT, False),
    MethodNotAllowed: (405, "method_not_allowed", CLIENT, False),
    RequestTimeout: (408, "request_timeout", CLIENT, True),
    BodyTooLarge: (413, "body_too_large", CLIENT, True),
    UpgradeRequired: (426, "upgrade_required", CLIENT, False),
    HeadersTooLarge: (431, "headers_too_large", CLIENT, True),
    Overloaded: (429, "overloaded", "overloaded_error", False),
    QueueTimeout: (503, "queue_timeout", "overloaded_error", False),
    NoUpstream: (503, "no_upstream", "upstream_error", False),
    Ineligible: (503, "ineligible", "upstream_error", False),
    Draining: (503, "draining", "overloaded_error", True),
    NotSupported: (501, "not_supported", CLIENT, False),
    PartialFailure: (502, "partial_failure", "upstream_error", False),
    AdministrationFailed: (502, "administration_failed", "upstream_error", False),
    InternalError: (500, "internal_error", "server_error", False),
    UpstreamConnect: (502, "upstream_connect", "upstream_error", False),
    UpstreamReset: (502, "upstream_reset", "upstream_error", False),
    UpstreamTimeout: (504, "upstream_timeout", "upstream_error", False),
}


@pytest.mark.parametrize(("kind", "row"), TABLE.items())
def test_each_refusal_is_a_row_of_the_contract(
    kind: type[Refusal], row: tuple[int, str, str, bool]
) -> None:
    """Status, code, type, and whether the connection ends with it."""
    assert (kind.status, kind.code, kind.type, kind.closes) == row


def test_no_refusal_is_without_a_row() -> None:
    """Every class that can be answered with is in the table, and in the drawing of the tree."""
    defined = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Refusal)
    }

    assert defined - {Refusal, UpstreamFault} == set(TABLE)
    for kind in defined - {Refusal}:
        assert f"─ {kind.__name__}" in (errors.__doc__ or "")


def test_codes_tell_refusals_apart() -> None:
    """Two that a client could confuse would be one."""
    assert len({kind.code for kind in TABLE}) == len(TABLE)


def test_the_upstreams_fault_is_told_from_ours() -> None:
    """Only those count against an upstream's health."""
    theirs = {kind for kind in TABLE if issubclass(kind, UpstreamFault)}

    assert theirs == {UpstreamConnect, UpstreamReset, UpstreamTimeout}


def test_a_refusal_says_why_and_when_to_come_back() -> None:
    """The message is the client's; unknown is None."""
    refusal = Overloaded("9 of 9 waiting", retry_after=2)

    assert (str(refusal), refusal.message, refusal.retry_after) == (refusal.message,) * 2 + (2,)
    assert NotFound("no such path").retry_after is None


def test_a_method_that_is_not_allowed_tells_which_are() -> None:
    """They go into the Allow header."""
    refusal = MethodNotAllowed("PUT is not", allow=("GET", "HEAD"))

    assert (refusal.message, refusal.allow) == ("PUT is not", ("GET", "HEAD"))


def test_a_config_error_tells_all_findings() -> None:
    """One a line, each by its path, in the order of the file."""
    error = ConfigError([("listen.port", "must be a number"), ("policy", "unknown key")])

    assert error.findings == (("listen.port", "must be a number"), ("policy", "unknown key"))
    assert str(error) == "listen.port: must be a number\npolicy: unknown key"


@pytest.mark.parametrize("kind", [ConfigError, EngineError, Refusal])
def test_all_have_one_root(kind: type[Exception]) -> None:
    """Whoever wants to catch what we raise on purpose has one name for it."""
    assert issubclass(kind, SpecswitchError)
