"""The calibration that a configuration names, and what the pair is set to by it."""

import logging
from collections.abc import Mapping
from pathlib import Path

from proxy.calibration import Calibration, CalibrationError, read
from proxy.config import Config
from proxy.core.curves import Curve
from proxy.core.fingerprint import Fingerprint
from proxy.core.modes import Thresholds
from proxy.core.tolerance import Bounds
from proxy.core.words import Topology, UpstreamName
from proxy.errors import ConfigError

_log = logging.getLogger(__name__)


def calibration_of(config: Config) -> Calibration | None:
    """What the file of `policy.calibration` says; None where there is none, or N* is set by hand.

    Raises ConfigError where the file is there and cannot be used.
    """
    policy = config.policy
    if policy.crossover or not policy.calibration:
        return None
    try:
        return read(Path(policy.calibration))
    except FileNotFoundError:
        return None
    except CalibrationError as error:
        raise ConfigError([("policy.calibration", str(error))]) from error


def thresholds_of(config: Config, calibration: Calibration | None) -> Thresholds:
    """What the controller is set to."""
    policy = config.policy
    by_hand = policy.crossover or None
    return Thresholds(
        crossover=by_hand if calibration is None else calibration.in_flight,
        crossover_rate=None if calibration is None else calibration.tokens_per_second,
        topology=policy.topology,
        tolerance=Bounds(policy.up_factor, policy.up_factor_min, policy.up_factor_max),
        gate_factor=policy.gate_factor,
        rate_up=policy.rate_up,
        rate_down=policy.rate_down,
        fast_window=policy.fast_window,
        slow_window=policy.slow_window,
        count_window=policy.count_window,
        return_dwell=policy.return_dwell,
        least_acceptance=_least_acceptance(config, calibration),
        flap_limit=policy.flap_limit,
        flap_window=policy.flap_window,
        flap_hold=policy.flap_hold,
    )


def _least_acceptance(config: Config, calibration: Calibration | None) -> float:
    """As configured; `auto`: where a lone request would be no faster than on base.

    A round costs the same however much of it is accepted, so time per token goes with 1 / tau, and
    equals base's at tau t_E(1) / t_B(1).
    """
    configured = config.policy.min_acceptance_length
    if configured != "auto":
        return configured
    accepted = None if calibration is None else calibration.servers.spec.acceptance_length
    if calibration is None or accepted is None:
        return 0.0
    spec, base = calibration.servers.spec.decode.curve, calibration.servers.base.decode.curve
    return accepted * spec.seconds_per_token(1.0) / base.seconds_per_token(1.0)


def made_for(calibration: Calibration | None) -> Mapping[UpstreamName, Fingerprint]:
    """The servers that it was made for."""
    if calibration is None:
        return {}
    return {name: calibration.server(name).fingerprint for name in UpstreamName}


def curves_of(calibration: Calibration | None) -> Mapping[UpstreamName, Curve]:
    """How fast they were."""
    if calibration is None:
        return {}
    return {name: calibration.server(name).decode.curve for name in UpstreamName}


def tell_of(config: Config, calibration: Calibration | None) -> None:
    """Say in the log what the mode will be decided by."""
    policy = config.policy
    if policy.crossover:
        _log.info(
            "N* = %g is set by hand; λ* is not known, the count alone decides", policy.crossover
        )
    elif calibration is None:
        _log.warning(
            "there is no calibration (policy.calibration = %s): generation goes to base; "
            "`specswitch calibrate` makes one",
            policy.calibration or '""',
        )
    else:
        _log.info("calibration of %s: %s", calibration.created.date(), calibration.verdict.sentence)
        _tell_of_topology(policy.topology, calibration)


def _tell_of_topology(topology: Topology, calibration: Calibration) -> None:
    found = calibration.contention
    if found is not None and found.topology != topology:
        _log.warning(
            'policy.topology is "%s"; both servers at once reached %.2f of one alone, which '
            'suggests "%s"',
            topology,
            found.sum,
            found.topology,
        )
