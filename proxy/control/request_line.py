"""What the log says of one request, by name and in order."""

import msgspec


class RequestLine(msgspec.Struct, omit_defaults=True):
    """What a request's line says; what is unknown is left out."""

    time: str | None = None
    level: str | None = None
    logger: str | None = None
    message: str | None = None
    request_id: str | None = None
    endpoint: str | None = None
    method: str | None = None
    key_name: str | None = None
    upstream: str | None = None
    reason: str | None = None
    mode: str | None = None
    outcome: str | None = None
    status: int | None = None
    code: str | None = None
    stream: bool | None = None
    sequences: int | None = None
    attempts: int | None = None
    waited_seconds: float | None = None
    first_token_seconds: float | None = None
    duration_seconds: float | None = None
    output_tokens: int | None = None
    request_bytes: int | None = None
    response_bytes: int | None = None
