"""What a pair is planned for, and what is assumed of it: values, and what follows for one server.

Every assumption has a name, a default and a flag. None of the defaults was measured on a GPU by
this project.
"""

from dataclasses import dataclass
from math import ceil
from typing import Final

from proxy.core.words import Topology, UpstreamName
from proxy.tools.plan.quantities import GIB, MIB
from proxy.tools.plan.sizes import Dtype, KvDtype, Model, element_bytes

CHUNKS: Final = (8192, 4096, 2048)
"""Tokens of a prefill chunk, from SGLang's default on large GPUs to the one on small ones
(`arg_groups/memory_hook.py`). The largest with which the pair fits is taken."""

_TABLE_ENTRY: Final = 4
"""Bytes for each token of context of each sequence (`mem_cache/memory_pool.py`, ReqToTokenPool)."""
_DECODE_GRAPH: Final = 2 * MIB
"""For each sequence of the largest CUDA graph (`arg_groups/memory_hook.py`, reserve_for_graph)."""
_PREFILL_GRAPH: Final = 8 * MIB
"""For each length of prefill that is captured (the same)."""
_DRAFT_GRAPHS: Final = 3
"""A speculative server captures drafting, verifying and the draft's catching up."""
_ACTIVATION_LEAST: Final = 512 * MIB
"""SGLang's own constant (`arg_groups/memory_hook.py`)."""
_ACTIVATION_TOKEN: Final = 0.375 * MIB
"""For each token of a prefill chunk. SGLang's default counts 1.5 MB, and 10 GB at least on a large
GPU, for the sake of any model; the tensors of one dense layer are 0.12 MB a token at 8B and 0.23 at
70B on one GPU: (4 x hidden + 3 x intermediate) x 2 bytes."""
_RUNTIME_LEAST: Final = GIB
_RUNTIME_RANK: Final = GIB // 8
"""For each GPU of a server, for what ranks exchange; SGLang counts as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserves:
    """Bytes on each GPU that are neither weights nor KV cache; None is computed."""

    gpu_reserved: int = 3 * GIB // 4
    """What nobody gets: the driver's, and what else runs there. 80 GB GPUs of NVIDIA show some 79.2
    GiB free of 80."""
    runtime: int | None = None
    """Of each server: CUDA context, libraries, communication. Taken before SGLang measures."""
    graphs: int | None = None
    """Of each server: CUDA graphs."""
    activations: int | None = None
    """Of each server: what a prefill of one chunk needs for a moment, and keeps."""
    margin: int = GIB
    """Left free when both have started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """The shape of what is drafted in one round."""

    steps: int = 3
    topk: int = 1
    tokens: int = 4

    @property
    def reserved(self) -> int:
        """Tokens that a running sequence holds beyond its context.

        Twice what a round may need (`mem_cache/allocation_sizing.py`), at a page size of 1.
        """
        return 2 * max(self.steps * self.topk, self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A pair, and the GPUs that it is to run on."""

    gpu_bytes: int
    """Of each GPU."""
    gpus: int = 1
    """Of each server: all of them with tensor parallelism."""
    topology: Topology = Topology.SHARED
    model: Model
    draft: Model
    draft_share: tuple[int, int] | None = None
    """Layers of the draft and of the model, by which SGLang counts the draft's keys and values;
    None: by what the draft really takes."""
    context: int
    spec_running: int
    base_running: int
    dtype: Dtype = Dtype.AUTO
    kv_dtype: KvDtype = KvDtype.AUTO
    drafts: Drafts = Drafts()
    spec_share: float = 0.25
    """Of the KV cache of both, in bytes: spec serves while few requests run."""
    chunk: int | None = None
    """Tokens of a prefill chunk; None: the largest of CHUNKS that fits."""
    reserves: Reserves = Reserves()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one server takes of each of its GPUs, in bytes, but for its KV cache."""

    name: UpstreamName
    weights: int
    draft: int
    runtime: int
    graphs: int
    table: int
    activations: int
    token_charged: int
    """Of a token, as SGLang counts it."""
    token_taken: int
    """Of a token, as it is: a draft of another shape than its target's takes more."""
    least_tokens: int
    """One request of full context."""
    running: int
    """Sequences that are wanted at one time."""

    @property
    def loaded(self) -> int:
        """All weights."""
        return self.weights + self.draft

    @property
    def started(self) -> int:
        """What comes on top of weights and KV cache until it is ready."""
        return self.graphs + self.table

    @property
    def excess(self) -> float:
        """Bytes that are taken for each that SGLang counts; at least 1."""
        return self.token_taken / self.token_charged


def demand(wanted: Wanted, name: UpstreamName, *, chunk: int) -> Demand:
    """What the server `name` takes with prefill chunks of so many tokens."""
    spec = name is UpstreamName.SPEC
    gpus, reserves = wanted.gpus, wanted.reserves
    running = wanted.spec_running if spec else wanted.base_running
    each = element_bytes(wanted.kv_dtype, wanted.dtype)
    token = wanted.model.token_bytes(gpus=gpus, element_bytes=each)
    drafted = wanted.draft.token_bytes(gpus=gpus, element_bytes=each) if spec else 0
    counted = _counted(wanted, token, drafted) if spec else 0
    graphs, runtime = reserves.graphs, reserves.runtime
    return Demand(
        name=name,
        weights=ceil(wanted.model.weight_bytes / gpus),
        draft=ceil(wanted.draft.weight_bytes / gpus) if spec else 0,
        runtime=_RUNTIME_LEAST + _RUNTIME_RANK * gpus if runtime is None else runtime,
        graphs=_graphs(running, chunk, spec=spec) if graphs is None else graphs,
        table=(running + 1) * wanted.context * _TABLE_ENTRY,
        activations=_activations(chunk) if reserves.activations is None else reserves.activations,
        token_charged=token + counted,
        token_taken=token + max(counted, drafted),
        least_tokens=wanted.context + reserved(wanted, name),
        running=running,
    )


def reserved(wanted: Wanted, name: UpstreamName) -> int:
    """Tokens that a running sequence holds beyond its context."""
    return wanted.drafts.reserved if name is UpstreamName.SPEC else 2


def _counted(wanted: Wanted, token: int, drafted: int) -> int:
    """SGLang takes the draft's layers to be like the target's (`pool_configurator.py`)."""
    if wanted.draft_share is None:
        return drafted
    mine, its = wanted.draft_share
    return token * mine // its


def _graphs(running: int, chunk: int, *, spec: bool) -> int:
    decode = _DECODE_GRAPH * running * (_DRAFT_GRAPHS if spec else 1)
    return decode + _PREFILL_GRAPH * prefill_lengths(chunk)


def prefill_lengths(chunk: int) -> int:
    """How many lengths of prefill SGLang captures (`arg_groups/cuda_graph_hook.py`)."""
    lengths = [
        *range(4, 33, 4),
        *range(48, 257, 16),
        *range(288, 513, 32),
        *range(576, 1025, 64),
        *range(1280, 4097, 256),
        *range(4608, chunk + 1, 512),
    ]
    return sum(length <= chunk for length in lengths)


def _activations(chunk: int) -> int:
    return ceil(_ACTIVATION_LEAST + _ACTIVATION_TOKEN * chunk)
