#!/bin/sh
# sglang-router 0.3.2 in front of three pairs. ../README.md says what is to be known.
#
#     PAIRS="http://pair-1:8000 http://pair-2:8000 http://pair-3:8000" ./router.sh
#
# One more pair, and one less, while it runs:
#
#     curl -X POST http://127.0.0.1:8080/workers -d '{"url": "http://pair-4:8000"}' -H 'content-type: application/json'
#     curl http://127.0.0.1:8080/workers          # has the id of each
#     curl -X DELETE http://127.0.0.1:8080/workers/ID
set -eu

: "${PAIRS:=http://pair-1:8000 http://pair-2:8000 http://pair-3:8000}"
: "${HOST:=127.0.0.1}" "${PORT:=8080}" "${METRICS_PORT:=29000}"
# cache_aware sends a prompt where its beginning went before, until a pair has BALANCE more open
# requests than another. Its own default of 64 is more than a pair decodes speculatively.
: "${POLICY:=cache_aware}" "${BALANCE:=4}"

# POLICY=manual keeps requests with the same x-smg-routing-key with one pair, and deals out the rest by
# lot: stored responses and sessions live in one pair's base.
#
# The checks: /readyz is 503 while a pair drains or has no engine. Every second, since the default of
# a minute is how long requests would go on being sent there.
#
# Retries: another pair is asked where one was not reached or answered 408, 429, 500, 502, 503 or 504.
# The router cannot be told which of them. So a request whose pair died may be done twice.
# The breaker stays open for 5 s, not a minute, once a pair failed three times.
#
# shellcheck disable=SC2086
exec sglang-router launch --host "$HOST" --port "$PORT" --worker-urls $PAIRS \
    --policy "$POLICY" --balance-abs-threshold "$BALANCE" --balance-rel-threshold 1.2 \
    --health-check-endpoint /readyz --health-check-interval-secs 1 --health-check-timeout-secs 1 \
    --health-failure-threshold 1 --health-success-threshold 1 \
    --worker-startup-check-interval 1 \
    --retry-max-retries 5 --retry-initial-backoff-ms 25 --retry-max-backoff-ms 1000 \
    --cb-failure-threshold 3 --cb-success-threshold 1 --cb-timeout-duration-secs 5 \
    --request-timeout-secs 3600 \
    --prometheus-host "$HOST" --prometheus-port "$METRICS_PORT" --log-level warn "$@"
