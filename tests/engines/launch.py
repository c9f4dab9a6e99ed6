"""Start the unmodified SGLang server on a machine without a GPU: `launch.py [SGLang's options]`.

Runs in the engines' environment. It takes the options of `python -m sglang.launch_server`, and
adds what a CPU needs. What that build lacks, `stubs/` stands in for; nothing installed is edited.

`--lifeline` as the first option ends the server, with all its processes, once standard input
closes: whoever started it may die in any way and leaves no server behind.
"""

# mypy: disable-error-code="import-not-found"
# (SGLang lives in the engines' environment, not in the one mypy runs in)

import os
import runpy
import signal
import sys
import threading
from pathlib import Path

STUBS = str(Path(__file__).resolve().parent / "stubs")

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "CUDA_VISIBLE_DEVICES": "",  # also where there is a GPU: the stubs compute on a CPU
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # the models are too small to share out
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",  # a few helpers are compiled on first use: 20 s of g++
}

DEFAULTS = {
    "--device": ["cpu"],
    "--attention-backend": ["intel_amx"],  # the one CPU backend that speculation accepts
    "--dtype": ["float32"],  # in bfloat16 the shape of a batch changes the text now and then
    "--skip-server-warmup": [],
    "--sleep-on-idle": [],  # or each idle server spins on a core
}


def main(arguments: list[str]) -> None:
    """Become the server."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if STUBS not in paths:
        # A fresh interpreter, so that the stubs are on the path of SGLang's child processes too.
        os.environ["PYTHONPATH"] = os.pathsep.join([STUBS, *filter(None, paths)])
        os.environ.update(ENVIRONMENT)
        os.execv(sys.executable, [sys.executable, __file__, *arguments])  # noqa: S606 - ourselves

    if arguments[:1] == ["--lifeline"]:
        arguments = arguments[1:]
        threading.Thread(target=_die_with_stdin, daemon=True).start()
    for option, values in DEFAULTS.items():
        if option not in arguments:
            arguments = [*arguments, option, *values]
    _serve(arguments)


def _die_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGKILL)


def _serve(arguments: list[str]) -> None:
    # Only now, since it needs the stubs.
    from sglang.srt.runtime_context import override_platform  # noqa: PLC0415

    sys.argv[1:] = arguments
    # SGLang leaves intel_amx for a backend without speculation where the CPU has no AMX. The
    # stubs need no AMX; this is SGLang's own way of saying so.
    with override_platform(has_amx=True):
        runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
