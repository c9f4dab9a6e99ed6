"""`specswitch plan`: options and help; the work is in `proxy/tools/plan/run.py`."""

import sys
from collections.abc import Callable
from pathlib import Path

import click

from proxy.core.words import Topology
from proxy.errors import ConfigError, SpecswitchError
from proxy.tools.plan import quantities

_EPILOG = """\b
Exit codes:
  0    the pair fits
  1    it does not, or a file could not be written
  2    wrong usage, or a config.json that cannot be used; each finding is a
       line `path: message`
  130  interrupted
"""


class _Quantity(click.ParamType[int]):
    """A size or a count; what is wrong with one is said at its option."""

    def __init__(self, read: Callable[[str], int]) -> None:
        self.name = "quantity"
        self._read = read

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Bytes, or how many."""
        try:
            return self._read(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


_SIZE = _Quantity(quantities.some)
_SIZE_OR_NONE = _Quantity(quantities.size)
_COUNT = _Quantity(quantities.count)
_FILE = click.Path(path_type=Path, dir_okay=False)


def _name(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and (not value.strip() or not value.isprintable()):
        raise click.BadParameter("must be a name on one line")
    return value


def _number(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    if value is not None and value != value:  # noqa: PLR0124 - NaN passes every range
        raise click.BadParameter("nan is no number")
    return value


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    short_help="Does the pair fit your GPU? Memory split, launch commands, .env.",
    epilog=_EPILOG,
)
@click.option(
    "--gpu-memory",
    type=_SIZE,
    required=True,
    metavar="SIZE",
    help="Of each GPU, as nvidia-smi shows it: 81559MiB, or 80GiB. 80GB are 74.5GiB.",
)
@click.option(
    "--gpus",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="GPUs of each server, with tensor parallelism over all of them.",
)
@click.option(
    "--topology",
    default=Topology.SHARED.value,
    show_default=True,
    type=click.Choice([each.value for each in Topology]),
    help="Both servers on the same GPUs, or each on --gpus of its own.",
)
@click.option("--config", type=_FILE, help="The config.json of the model; says all that is below.")
@click.option("--model-weights", type=_SIZE, metavar="SIZE", help="Of all its files: 16GB, 15GiB.")
@click.option("--parameters", type=_COUNT, metavar="N", help="In place of that: 8B, 70.6B, 500M.")
@click.option(
    "--dtype",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "bfloat16", "float16", "float32"]),
    help="--dtype of both servers; auto is 16 bits.",
)
@click.option(
    "--weight-bits",
    type=click.FloatRange(1.0, 32.0),
    callback=_number,
    metavar="BITS",
    help="Of a weight, where they are quantised: 8 for FP8, about 4.25 for AWQ and GPTQ.",
)
@click.option("--model", callback=_name, metavar="NAME", help="Its name or path, for the commands.")
@click.option(
    "--draft-config", type=_FILE, help="The config.json of the draft.  [one layer like the model's]"
)
@click.option(
    "--draft-weights", type=_SIZE, metavar="SIZE", help="Of the draft's files.  [guessed by size]"
)
@click.option("--draft-model", callback=_name, metavar="NAME", help="Its name or path.")
@click.option(
    "--context",
    type=click.IntRange(1, 2**24),
    metavar="TOKENS",
    help="The longest request, with its answer.  [32768, or what the model was made for if less]",
)
@click.option(
    "--concurrency",
    default=256,
    show_default=True,
    type=click.IntRange(1, 65536),
    help="Sequences that base should run at one time.",
)
@click.option(
    "--spec-concurrency",
    default=16,
    show_default=True,
    type=click.IntRange(1, 65536),
    help="Sequences that spec should run at one time: about twice the crossover, once it is known.",
)
@click.option(
    "--kv-cache-dtype",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "bfloat16", "fp8_e4m3", "fp8_e5m2"]),
    help="Of both servers; auto is that of the weights, 16 bits.",
)
@click.option(
    "--kv-bytes-per-token",
    type=click.IntRange(1, 2**40),
    metavar="BYTES",
    help="On each GPU, for a model that is not known here.",
)
@click.option(
    "--draft-steps",
    default=3,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="--speculative-num-steps: how often the draft runs for one step of the model.",
)
@click.option(
    "--draft-topk",
    default=1,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="--speculative-eagle-topk; above 1 the drafts are a tree.",
)
@click.option(
    "--draft-tokens",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="That are verified at once.  [of a chain: one more than its steps]",
)
@click.option(
    "--spec-share",
    default=0.25,
    show_default=True,
    type=click.FloatRange(0.0, 1.0),
    callback=_number,
    metavar="SHARE",
    help="Of the KV cache of both that spec gets, on shared GPUs.",
)
@click.option(
    "--chunked-prefill-size",
    type=click.IntRange(16, 2**20),
    metavar="TOKENS",
    help="Of both servers.  [the largest of 8192, 4096 and 2048 that fits]",
)
@click.option(
    "--gpu-reserved",
    default="768MiB",
    show_default=True,
    type=_SIZE_OR_NONE,
    metavar="SIZE",
    help="Of each GPU nobody gets: the driver, other programs.",
)
@click.option(
    "--runtime-memory",
    type=_SIZE_OR_NONE,
    metavar="SIZE",
    help="Of each server: CUDA context, libraries.  [1GiB and 128MiB for each of its GPUs]",
)
@click.option(
    "--graph-memory",
    type=_SIZE_OR_NONE,
    metavar="SIZE",
    help="Of each server: CUDA graphs.  [computed]",
)
@click.option(
    "--activation-memory",
    type=_SIZE_OR_NONE,
    metavar="SIZE",
    help="Of each server, while it fills a prompt.  [3.5GiB with chunks of 8192 tokens]",
)
@click.option(
    "--margin",
    default="1GiB",
    show_default=True,
    type=_SIZE_OR_NONE,
    metavar="SIZE",
    help="Left free on each GPU when both run.",
)
@click.option("--env", type=_FILE, metavar="FILE", help="Write the keys for compose here: .env")
@click.option(
    "--force", is_flag=True, help="With --env: change a file that is there. Other lines stay."
)
@click.option("--json", "as_json", is_flag=True, help="One object on standard output.")
def plan(  # noqa: PLR0913 - one for each option
    *,
    gpu_memory: int,
    gpus: int,
    topology: str,
    config: Path | None,
    model_weights: int | None,
    parameters: int | None,
    dtype: str,
    weight_bits: float | None,
    model: str | None,
    draft_config: Path | None,
    draft_weights: int | None,
    draft_model: str | None,
    context: int | None,
    concurrency: int,
    spec_concurrency: int,
    kv_cache_dtype: str,
    kv_bytes_per_token: int | None,
    draft_steps: int,
    draft_topk: int,
    draft_tokens: int | None,
    spec_share: float,
    chunked_prefill_size: int | None,
    gpu_reserved: int,
    runtime_memory: int | None,
    graph_memory: int | None,
    activation_memory: int | None,
    margin: int,
    env: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Plan: does a pair fit these GPUs, and how do the two servers share their memory?

    \b
      specswitch plan --gpu-memory 80GiB --parameters 8B
      specswitch plan --gpu-memory 141GiB --gpus 4 --config config.json --env .env
      specswitch plan --gpu-memory 24GiB --model-weights 6.4GB --context 8192

    Two servers need the weights twice. spec starts first, base takes its share of what is left:
    --mem-fraction-static is of what is free at the launch. The plan has both fractions, the KV
    tokens that follow, the caps and the launch commands. Where the pair does not fit, it says by
    how much, and what would.

    Nothing is asked of a GPU: these are estimates from assumptions, each with its option.
    `specswitch doctor` reads what running servers really have.
    """  # noqa: D301 - \b is click's mark for lines to be left as they are
    from proxy.tools.plan import run  # noqa: PLC0415 - `--help` need not wait for it
    from proxy.tools.plan.known import Told  # noqa: PLC0415 - the same
    from proxy.tools.plan.launch import Names  # noqa: PLC0415 - the same
    from proxy.tools.plan.sizes import Dtype, KvDtype  # noqa: PLC0415 - the same
    from proxy.tools.plan.wanted import Drafts, Reserves  # noqa: PLC0415 - the same

    if model_weights is not None and parameters is not None:
        raise click.UsageError("--model-weights is in place of --parameters; give one of the two")
    if force and env is None:
        raise click.UsageError("--force goes with --env")
    options = run.Options(
        gpu_bytes=gpu_memory,
        gpus=gpus,
        topology=Topology(topology),
        told=Told(
            weight_bytes=model_weights,
            parameters=parameters,
            config=config,
            weight_bits=weight_bits,
            kv_token_bytes=kv_bytes_per_token,
            dtype=Dtype(dtype),
            draft_weight_bytes=draft_weights,
            draft_config=draft_config,
        ),
        names=Names(model=model, draft=draft_model),
        context=context,
        spec_running=spec_concurrency,
        base_running=concurrency,
        kv_dtype=KvDtype(kv_cache_dtype),
        drafts=Drafts(
            steps=draft_steps,
            topk=draft_topk,
            tokens=_draft_tokens(draft_steps, draft_topk, draft_tokens),
        ),
        spec_share=spec_share,
        chunk=chunked_prefill_size,
        reserves=Reserves(
            gpu_reserved=gpu_reserved,
            runtime=runtime_memory,
            graphs=graph_memory,
            activations=activation_memory,
            margin=margin,
        ),
    )
    try:
        code = run.run(options, env=env, force=force, as_object=as_json)
    except ConfigError as error:
        for path, message in error.findings:
            click.echo(f"{path}: {message}", err=True)
        code = 2
    except SpecswitchError as error:
        click.echo(f"specswitch: {error}", err=True)
        code = 1
    sys.exit(code)


def _draft_tokens(steps: int, topk: int, tokens: int | None) -> int:
    """As SGLang has it: of a chain, always one more than its steps (`speculative_hook.py`)."""
    if topk == 1:
        if tokens not in {None, steps + 1}:
            raise click.UsageError(
                f"--draft-tokens of a chain of {steps} steps is {steps + 1}; leave it out, or give "
                "--draft-topk"
            )
        return steps + 1
    if tokens is None:
        raise click.UsageError("--draft-topk above 1 makes a tree; give its --draft-tokens too")
    return tokens
