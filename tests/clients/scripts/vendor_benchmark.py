"""SGLang's own load generator, `python -m sglang.benchmark.serving`, once for each backend.

Runs in the engines' environment, in one process: its imports take ten seconds.
"""

# mypy: disable-error-code="import-not-found"
# (SGLang lives in the engines' environment, not in the one mypy runs in)

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from sglang.benchmark.serving import cli_main

from tests.clients.scripts.serving import SHORT, Target, serve

TOKENIZER = Path(__file__).resolve().parents[3] / ".engines" / "models" / "target"
PROMPTS, TOGETHER = 24, 8
"""Twice N* at a time."""


def run(backend: str, target: Target) -> object:
    """One run of it, and the result that it writes."""
    os.environ["OPENAI_API_KEY"] = target.key
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.jsonl"
        sys.argv[1:] = [
            f"--backend={backend}",
            f"--base-url={target.url}",
            "--dataset-name=random-ids",
            f"--tokenizer={TOKENIZER}",
            f"--num-prompts={PROMPTS}",
            f"--max-concurrency={TOGETHER}",
            "--random-input-len=32",
            f"--random-output-len={SHORT}",
            "--random-range-ratio=1",
            f"--output-file={result}",
            "--output-details",
            "--disable-tqdm",
        ]
        cli_main()
        told = json.loads(result.read_text())
    return {
        "asked": PROMPTS + 1,  # with one to warm up
        "completed": told["completed"],
        "errors": [each for each in told["errors"] if each],
        "tokens": told["total_output_tokens"],
        "model": told.get("model_id", target.model),
        "server_info": told["server_info"],
    }


if __name__ == "__main__":
    serve({each: partial(run, each) for each in ("sglang", "sglang-oai", "sglang-oai-chat")})
