"""Every error that specswitch raises or answers with.

    SpecswitchError
    ├─ ConfigError              at start or reload: all findings, each with its path
    ├─ Refusal                  our own answer to a client; carries status and code
    │  ├─ BadRequest            400 bad_request          the client's fault
    │  ├─ InvalidApiKey         401 invalid_api_key
    │  ├─ OriginNotAllowed      403 origin_not_allowed
    │  ├─ NotFound              404 not_found
    │  ├─ MethodNotAllowed      405 method_not_allowed
    │  ├─ RequestTimeout        408 request_timeout
    │  ├─ BodyTooLarge          413 body_too_large
    │  ├─ UpgradeRequired       426 upgrade_required
    │  ├─ HeadersTooLarge       431 headers_too_large
    │  ├─ Overloaded            429 overloaded           ours: no room; nothing was sent
    │  ├─ QueueTimeout          503 queue_timeout
    │  ├─ NoUpstream            503 no_upstream
    │  ├─ Ineligible            503 ineligible
    │  ├─ Draining              503 draining
    │  ├─ NotSupported          501 not_supported        administration that a pair cannot take
    │  ├─ PartialFailure        502 partial_failure      one server did it, the other did not
    │  ├─ AdministrationFailed  502 administration_failed
    │  ├─ InternalError         500 internal_error       a fault of ours, reported in the log
    │  └─ UpstreamFault                                  the upstream's; counts against its health
    │     ├─ UpstreamConnect    502 upstream_connect     nothing was sent
    │     ├─ UpstreamReset      502 upstream_reset
    │     └─ UpstreamTimeout    504 upstream_timeout
    ├─ UnreadableBody           a body is routed without being looked into; never answered with
    └─ EngineError              the control plane could not read a server
       ├─ EngineSilentError     it did not answer in time
       └─ EngineUnaskedError    we could not ask: our own file descriptors had run out

A refusal is a value first: the data plane turns it into an answer and never raises it across a
callback. Nothing here holds a body, a header or a key.
"""

from collections.abc import Sequence
from typing import ClassVar


class SpecswitchError(Exception):
    """The root: everything we raise on purpose."""


class ConfigError(SpecswitchError):
    """A configuration that cannot be used; `findings` are (path, message), in file order."""

    def __init__(self, findings: Sequence[tuple[str, str]]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(f"{path}: {message}" for path, message in self.findings))


class EngineError(SpecswitchError):
    """A server did not answer, or not with what SGLang answers; the message says which."""


class EngineSilentError(EngineError):
    """A server that did not answer in time, and may be busy."""


class EngineUnaskedError(EngineError):
    """A server that could not be asked, since our own file descriptors had run out."""


class UnreadableBody(SpecswitchError):  # noqa: N818 - says nothing about whether it is good
    """To read a body for what decides would take too long, or it is compressed."""


class Refusal(SpecswitchError):  # noqa: N818 - an answer first; most are nobody's error
    """An answer of our own; the message is for the client and says why, with counts."""

    status: ClassVar[int]
    code: ClassVar[str]
    type: ClassVar[str] = "invalid_request_error"
    closes: ClassVar[bool] = False
    """Whether the client's connection cannot be used again after this answer."""

    def __init__(self, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        """Whole seconds for the Retry-After header, or None."""


class BadRequest(Refusal):
    """Not HTTP that we accept."""

    status, code, closes = 400, "bad_request", True


class InvalidApiKey(Refusal):
    """Keys are configured, and none or a wrong one was given."""

    status, code, type = 401, "invalid_api_key", "authentication_error"


class OriginNotAllowed(Refusal):
    """A web page of another origin asks for a WebSocket where nobody needs a key."""

    status, code, type = 403, "origin_not_allowed", "permission_error"


class NotFound(Refusal):
    """A path that is not on the allow-list."""

    status, code = 404, "not_found"


class MethodNotAllowed(Refusal):
    """A known path with another method; `allow` are the methods it has."""

    status, code = 405, "method_not_allowed"

    def __init__(self, message: str, *, allow: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allow = allow


class RequestTimeout(Refusal):
    """A head or body that dribbled past its deadline."""

    status, code, closes = 408, "request_timeout", True


class BodyTooLarge(Refusal):
    """A body over `limits.max_body_bytes`, declared or chunked."""

    status, code, closes = 413, "body_too_large", True


class UpgradeRequired(Refusal):
    """A path that is a WebSocket only, and none was asked for that we could serve."""

    status, code = 426, "upgrade_required"


class HeadersTooLarge(Refusal):
    """A head over `limits.max_header_bytes`."""

    status, code, closes = 431, "headers_too_large", True


class Overloaded(Refusal):
    """No room: the waiting room, the connections or the buffered bodies are at their limit."""

    status, code, type = 429, "overloaded", "overloaded_error"


class QueueTimeout(Refusal):
    """Waited `limits.queue_timeout` for a place."""

    status, code, type = 503, "queue_timeout", "overloaded_error"


class NoUpstream(Refusal):
    """Nothing usable within `timeouts.wait_for_upstream`."""

    status, code, type = 503, "no_upstream", "upstream_error"


class Ineligible(Refusal):
    """Only base may serve this request, and base is unusable or switched off."""

    status, code, type = 503, "ineligible", "upstream_error"


class Draining(Refusal):
    """Shutting down."""

    status, code, type, closes = 503, "draining", "overloaded_error", True


class NotSupported(Refusal):
    """Administration of SGLang that would make the two servers of the pair differ."""

    status, code = 501, "not_supported"


class PartialFailure(Refusal):
    """Administration that one server of the pair has carried out, and the other has not."""

    status, code, type = 502, "partial_failure", "upstream_error"


class AdministrationFailed(Refusal):
    """Administration that neither server has carried out."""

    status, code, type = 502, "administration_failed", "upstream_error"


class InternalError(Refusal):
    """A fault of ours while an answer was put together; the log has its traceback."""

    status, code, type = 500, "internal_error", "server_error"


class UpstreamFault(Refusal):
    """The upstream failed before anything reached the client."""

    type = "upstream_error"


class UpstreamConnect(UpstreamFault):
    """No connection to any upstream; nothing was sent."""

    status, code = 502, "upstream_connect"


class UpstreamReset(UpstreamFault):
    """The upstream died, or sent something that is not HTTP, before the end of its head."""

    status, code = 502, "upstream_reset"


class UpstreamTimeout(UpstreamFault):
    """The upstream was silent past its deadline."""

    status, code = 504, "upstream_timeout"


# Faults of ours: nobody handles them, and a test that sees one fails.


class IllegalEvent(RuntimeError):  # noqa: N818 - as h11's LocalProtocolError
    """A state of an exchange was told what cannot happen in it."""


class LeaseError(RuntimeError):
    """A lease was given back twice; the count would have gone wrong."""
