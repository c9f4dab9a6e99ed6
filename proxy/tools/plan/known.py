"""The model and its draft, from what was told of them; what was not told is guessed by size.

What is told by hand counts before what a file says, and a file before a guess.
"""

from dataclasses import dataclass
from pathlib import Path

from proxy.errors import ConfigError
from proxy.tools.plan import sizes
from proxy.tools.plan.architecture import (
    INSTEAD_OF_DRAFT,
    INSTEAD_OF_WEIGHTS,
    Architecture,
    read_architecture,
    read_weight_bytes,
)
from proxy.tools.plan.sizes import Dtype, KvShape, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What was told of a model and its draft; None where nothing was."""

    weight_bytes: int | None = None
    parameters: int | None = None
    config: Path | None = None
    weight_bits: float | None = None
    kv_token_bytes: int | None = None
    """On each GPU."""
    dtype: Dtype = Dtype.AUTO
    draft_weight_bytes: int | None = None
    draft_config: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Both, and how their layers compare where both shapes are known."""

    model: Model
    draft: Model
    draft_share: tuple[int, int] | None


def known(told: Told) -> Known:
    """The model and its draft.

    Raises:
        ConfigError: a file cannot be used, or the size of the model is unknown.
    """
    shape = None if told.config is None else read_architecture(told.config)
    model = _model(told, shape)
    parameters = model.weight_bytes * 8 / model.weight_bits
    draft = _draft(told, model, parameters)
    share = None
    if isinstance(model.kv, KvShape) and isinstance(draft.kv, KvShape):
        share = (draft.kv.layers, model.kv.layers)
    return Known(model=model, draft=draft, draft_share=share)


def _model(told: Told, shape: Architecture | None) -> Model:
    bits = _bits(told, shape)
    weight_bytes = _weight_bytes(told, shape, bits)
    return Model(
        weight_bytes=weight_bytes,
        weight_bits=bits,
        kv=_kv(told, shape, weight_bytes * 8 / bits),
        kv_guessed=told.kv_token_bytes is None and shape is None,
        heads=None if shape is None else shape.heads,
        kv_heads=None if shape is None else shape.kv_heads,
        positions=None if shape is None else shape.positions,
    )


def _kv(told: Told, shape: Architecture | None, parameters: float) -> KvShape | int:
    if told.kv_token_bytes is not None:
        return told.kv_token_bytes
    return sizes.guessed_kv(parameters) if shape is None else sizes.kv_shape(shape)


def _bits(told: Told, shape: Architecture | None) -> float:
    if told.weight_bits is not None:
        return told.weight_bits
    if shape is None or shape.quantised_how is None:
        return told.dtype.bits
    if shape.weight_bits is not None:
        return shape.weight_bits
    if told.parameters is None:
        return sizes.FULL_BITS  # for guesses by size alone: the weights come from elsewhere
    what = f"is quantised ({shape.quantised_how}) in a way that is not known here"
    raise ConfigError([(str(told.config), f"{what}; give --weight-bits with --parameters")])


def _weight_bytes(told: Told, shape: Architecture | None, bits: float) -> int:
    if told.weight_bytes is not None:
        return told.weight_bytes
    if told.parameters is not None:
        return sizes.weights(told.parameters, bits)
    if told.config is None or shape is None:
        raise ConfigError(
            [("--model-weights", "how large is the model? give it, --parameters or --config")]
        )
    return _weight_bytes_of_files(told, told.config, shape, bits)


def _weight_bytes_of_files(told: Told, path: Path, shape: Architecture, bits: float) -> int:
    listed = read_weight_bytes(path)
    if listed is not None and told.weight_bits is None:
        # Stored in 32 bits, and loaded in as many as --dtype says.
        return round(listed * told.dtype.bits / 32) if shape.float32 else listed
    known_bits = told.weight_bits or shape.weight_bits or not shape.quantised_how
    counted = sizes.weight_bytes(shape, bits=bits) if known_bits else None
    if counted is None:
        of = shape.quantised_how or shape.model_type
        what = f"what weights of {of} take is not known here"
        raise ConfigError([(str(path), f"{what}; {INSTEAD_OF_WEIGHTS}")])
    return counted


def _draft(told: Told, model: Model, parameters: float) -> Model:
    own = None if told.draft_config is None else _draft_architecture(told.draft_config)
    return Model(
        weight_bytes=_draft_weight_bytes(told, own, parameters),
        weights_guessed=told.draft_weight_bytes is None and own is None,
        kv=_draft_kv(own, model, parameters),
        kv_guessed=own is None,
        positions=None if own is None else own.positions,
    )


def _draft_architecture(path: Path) -> Architecture:
    return read_architecture(path, instead=INSTEAD_OF_DRAFT)


def _draft_weight_bytes(told: Told, own: Architecture | None, parameters: float) -> int:
    if told.draft_weight_bytes is not None:
        return told.draft_weight_bytes
    if own is None:
        return sizes.weights(sizes.guessed_draft_parameters(parameters), sizes.FULL_BITS)
    counted = sizes.draft_weight_bytes(own)
    if counted is None:
        raise ConfigError(
            [(str(told.draft_config), f"has no intermediate_size; {INSTEAD_OF_DRAFT}")]
        )
    return counted


def _draft_kv(own: Architecture | None, model: Model, parameters: float) -> KvShape | int:
    """One layer like the target's, where nothing is told: what EAGLE-3 drafts have."""
    if isinstance(model.kv, int):
        return model.kv // sizes.guessed_kv(parameters).layers
    if own is not None:
        return sizes.kv_shape(own)
    return KvShape(layers=1, heads=model.kv.heads, head_dim=model.kv.head_dim)
