"""`specswitch plan` as it is typed: what it prints, what it writes, and every complaint."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from proxy.cli import main
from tests.harness.plans import DRAFT_8B, LLAMA_8B, config

FITS = "--gpu-memory 80GiB --parameters 8.03B"
TOO_LARGE = "--gpu-memory 80GiB --parameters 32B"


def plan(words: str, *more: str) -> Result:
    """What the command does, on a terminal of 100 columns."""
    runner = CliRunner(env={"COLUMNS": "100"})
    return runner.invoke(main, ["plan", *shlex.split(words), *more])


def planned(words: str, *more: str) -> dict[str, Any]:
    """What --json prints."""
    found: dict[str, Any] = json.loads(plan(words, "--json", *more).stdout)
    return found


def test_a_pair_that_fits_is_0() -> None:
    """The answer first; a table, both commands with the wait between them, what was assumed."""
    result = plan(FITS)
    assert result.exit_code == 0
    assert result.stdout.startswith("The pair fits: one GPU of 80.0 GiB.\n")
    parts = ("CUDA context", "--speculative-algorithm", "/ready", "--port 30000", "Assumed")
    places = [result.stdout.index(part) for part in parts]
    assert places == sorted(places)
    assert "estimates" in result.stdout
    assert "specswitch doctor" in result.stdout


def test_a_pair_that_does_not_fit_is_1() -> None:
    """By how much, and what would; no command that would fail."""
    result = plan(TOO_LARGE)
    assert result.exit_code == 1
    assert result.stdout.startswith("It does not fit: one GPU of 80.0 GiB.\n")
    assert re.search(r"[0-9.]+ GiB are missing on each GPU", result.stdout)
    assert "--gpus 2" in result.stdout
    assert "--speculative-adaptive" in result.stdout
    assert "launch_server" not in result.stdout


def test_where_nothing_near_it_fits_that_is_said() -> None:
    """Rather than nothing."""
    result = plan("--gpu-memory 1GiB --parameters 8B")
    assert result.exit_code == 1
    assert "Nothing near it fits either" in result.stdout


def test_commands_can_be_copied() -> None:
    """No line of them is broken, and each is what a shell takes for one command."""
    narrow = CliRunner(env={"COLUMNS": "40"}).invoke(main, ["plan", *shlex.split(FITS)]).stdout
    for command in planned(FITS)["commands"].values():
        assert command in narrow
        words = shlex.split(command.replace("\\\n", ""))
        assert words[words.index("python") :][:3] == ["python", "-m", "sglang.launch_server"]


def test_a_narrow_terminal_cuts_no_flag() -> None:
    """Not in the table either."""
    narrow = CliRunner(env={"COLUMNS": "60"}).invoke(main, ["plan", *shlex.split(FITS)]).stdout
    assert "--cuda-graph-max-bs-decode  " in narrow
    assert "…" not in narrow


def test_flags_are_those_of_the_plan() -> None:
    """The spec server's with speculation, the other's without, both with the same model."""
    found = planned(FITS, "--model", "org/m", "--draft-model", "a draft", "--gpus", "2")
    spec, base = (shlex.split(str(each)) for each in found["commands"].values())
    servers = found["servers"]
    for words, name in ((spec, "spec"), (base, "base")):
        flags = dict(
            zip(
                words[words.index("--model-path") :],
                words[words.index("--model-path") + 1 :],
                strict=False,
            )
        )
        assert flags["--model-path"] == "org/m"
        assert float(flags["--mem-fraction-static"]) == servers[name]["mem_fraction_static"]
        assert int(flags["--max-running-requests"]) == servers[name]["max_running_requests"]
        assert int(flags["--cuda-graph-max-bs-decode"]) == servers[name]["max_running_requests"]
        assert flags["--tp-size"] == "2"
        assert flags["--context-length"] == "32768"
        assert flags["--chunked-prefill-size"] == "8192"
        assert "--kv-cache-dtype" not in flags
    assert spec[0] == "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
    assert "a draft" in spec
    assert not any("speculative" in word for word in base)


def test_a_draft_that_is_long_enough_needs_no_leave(tmp_path: Path) -> None:
    """SGLang refuses a context beyond the draft's unless it is told to take it."""
    long = config(tmp_path, DRAFT_8B, max_position_embeddings=32_768)
    assert "ALLOW_OVERWRITE" not in plan(f"{FITS} --draft-config {long}").stdout
    short = config(tmp_path, DRAFT_8B)
    told = plan(f"{FITS} --draft-config {short}").stdout
    assert "ALLOW_OVERWRITE" in told
    assert "eligibility.max_spec_prompt_tokens = 2048" in told


def test_servers_of_their_own_gpus_do_not_wait_for_each_other() -> None:
    """The second is on those after spec's, and doctor has no split to look at."""
    told = plan(f"{FITS} --gpus 2 --topology separate").stdout
    assert "2 GPUs each" in told
    assert told.count("--base-gpu-id 2") == told.count("--base-gpu-id") == 1
    assert "until curl" not in told
    assert "--spec-share" not in told
    assert "memory.split" not in told
    short = plan("--gpu-memory 16GiB --parameters 32B --topology separate").stdout
    assert "are missing on each GPU of one of the servers" in re.sub(r"\s+", " ", short)


def test_config_files_are_read(tmp_path: Path) -> None:
    """What they say is no longer assumed."""
    (tmp_path / "draft").mkdir()
    model, draft = config(tmp_path, LLAMA_8B), config(tmp_path / "draft", DRAFT_8B)
    words = f"--gpu-memory 80GiB --config {model} --draft-config {draft} --model llama"
    found = planned(words)
    assert found["needs"]["base"]["token_bytes"] == 128 * 1024
    options = [each["option"] for each in found["assumptions"]]
    assert not any("config" in str(option) for option in options)
    guessed = [each["option"] for each in planned(FITS)["assumptions"]]
    assert [option for option in guessed if option not in options] == [
        "--config, --kv-bytes-per-token",
        "--draft-config, --draft-weights",
    ]


def test_a_context_is_what_the_model_was_made_for(tmp_path: Path) -> None:
    """If that is less than 32,768; more is refused."""
    short = config(tmp_path, LLAMA_8B, max_position_embeddings=4096)
    words = f"--gpu-memory 80GiB --config {short}"
    assert planned(words)["context"] == 4096
    result = plan(f"{words} --context 8192")
    assert result.exit_code == 2
    assert result.stderr == "--context: must be at most 4096, which the model was made for\n"
    assert planned(f"{words} --context 4096")["context"] == 4096


def test_what_gave_way_is_said() -> None:
    """A smaller chunk, and fewer sequences; the bound of what calibrate can see always."""
    told = re.sub(r"\s+", " ", plan("--gpu-memory 24GiB --parameters 3B --context 8192").stdout)
    assert "chunks of 2048 tokens: with 8192" in told
    assert re.search(r"base: [0-9]+ sequences at once, not 256", told)
    assert "a crossover above 16 is not seen" in told
    chosen = plan("--gpu-memory 24GiB --parameters 3B --context 4096 --chunked-prefill-size 1024")
    assert "are filled in chunks" not in chosen.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--parameters 8B", "Missing option '--gpu-memory'"),
        ("--gpu-memory 80", 'must be a size such as "80GiB" or "16GB"'),
        ("--gpu-memory 0GiB", "must be more than 0"),
        ("--gpu-memory 80GiB", "--model-weights: how large is the model?"),
        ("--gpu-memory 80GiB --parameters 8GB", 'must be a number such as "8B"'),
        (f"{FITS} --model-weights 16GB", "--model-weights is in place of --parameters"),
        (f"{FITS} --force", "--force goes with --env"),
        (f"{FITS} --weight-bits nan", "nan is no number"),
        (f"{FITS} --spec-share nan", "nan is no number"),
        (f"{FITS} --spec-share 2", "is not in the range"),
        (f"{FITS} --gpus 0", "is not in the range"),
        (f"{FITS} --context 0", "is not in the range"),
        (f"{FITS} --topology both", "is not one of 'shared', 'separate'"),
        (f"{FITS} --dtype int4", "is not one of"),
        (f"{FITS} --draft-topk 8", "makes a tree; give its --draft-tokens too"),
        (f"{FITS} --draft-tokens 32", "of a chain of 3 steps is 4; leave it out"),
        (f"{FITS} --model ' '", "must be a name on one line"),
        (f"{FITS} --draft-model 'a\nb'", "must be a name on one line"),
        ("--gpu-memory 80GiB --config no.json", "no.json: cannot be read"),
        (f"{FITS} --draft-config no.json", "no.json: cannot be read"),
    ],
)
def test_wrong_usage_is_2_and_says_why(words: str, complaint: str) -> None:
    """At its option, or with the name of the file."""
    result = plan(words)
    assert result.exit_code == 2
    assert complaint in re.sub(r"\s+", " ", result.stderr)
    assert result.stdout == ""


def test_gpus_that_cannot_share_are_refused(tmp_path: Path) -> None:
    """SGLang would not start."""
    result = plan(f"--gpu-memory 80GiB --gpus 3 --config {config(tmp_path, LLAMA_8B)}")
    assert result.exit_code == 2
    assert result.stderr == (
        "--gpus: 3 GPUs cannot share 32 attention heads and 8 KV heads evenly\n"
    )


@pytest.mark.parametrize(
    ("words", "tokens"), [("", 4), ("--draft-steps 5", 6), ("--draft-topk 8 --draft-tokens 32", 32)]
)
def test_a_chain_verifies_one_more_than_its_steps(words: str, tokens: int) -> None:
    """As SGLang has it; a tree says how many."""
    told = plan(f"{FITS} {words}").stdout
    assert f"--speculative-num-draft-tokens {tokens}" in told


def test_the_keys_for_compose_are_written(tmp_path: Path) -> None:
    """With those that are still to be set; for its owner alone."""
    env = tmp_path / ".env"
    result = plan(f"{FITS} --model org/m --draft-model org/d --env {env}")
    assert result.exit_code == 0
    found = planned(FITS)["servers"]
    assert env.read_text().splitlines() == [
        "# Written by `specswitch plan`.",
        "MODEL=org/m",
        "DRAFT_MODEL=org/d",
        "DTYPE=auto",
        "CONTEXT_LENGTH=32768",
        "GPUS=1",
        "TP_SIZE=1",
        f"SPEC_MEM_FRACTION={found['spec']['mem_fraction_static']:g}",
        f"BASE_MEM_FRACTION={found['base']['mem_fraction_static']:g}",
        "SPEC_MAX_RUNNING=16",
        "BASE_MAX_RUNNING=256",
        "SPEC_NUM_STEPS=3",
        "SPEC_EAGLE_TOPK=1",
        "SPEC_NUM_DRAFT_TOKENS=4",
        "SPEC_EXTRA_ARGS='--chunked-prefill-size 8192'",
        "BASE_EXTRA_ARGS='--chunked-prefill-size 8192'",
    ]
    assert result.stderr == (
        f"{env} was written; still to be set in it: SPECSWITCH_ADMIN_TOKEN, "
        "GRAFANA_ADMIN_PASSWORD\n"
    )


def test_separate_gpus_are_written_and_taken_out_again(tmp_path: Path) -> None:
    """With the override that reads them, beside others; pinned tokens go, and it says so."""
    env = tmp_path / ".env"
    env.write_text("COMPOSE_FILE=docker-compose.yml:mine.yml\nSPEC_MAX_TOTAL_TOKENS=9\n")
    separate = plan(f"{FITS} --gpus 2 --topology separate --env {env} --force")
    assert "written; taken out: SPEC_MAX_TOTAL_TOKENS\n" in separate.stderr
    lines = env.read_text().splitlines()
    assert lines[0] == "COMPOSE_FILE=docker-compose.yml:mine.yml:deploy/compose/separate.yml"
    assert {"GPUS=2", "TP_SIZE=2", "SPEC_GPU_IDS=0,1", "BASE_GPU_IDS=2,3"} <= set(lines)
    shared = plan(f"{FITS} --env {env} --force")
    assert "written; taken out: SPEC_GPU_IDS, BASE_GPU_IDS\n" in shared.stderr
    assert env.read_text().splitlines()[0] == "COMPOSE_FILE=docker-compose.yml:mine.yml"
    env.write_text("COMPOSE_FILE=docker-compose.yml:deploy/compose/separate.yml\n")
    plan(f"{FITS} --env {env} --force")
    assert "COMPOSE_FILE" not in env.read_text()


def test_a_file_that_is_there_is_changed_with_force_only(tmp_path: Path) -> None:
    """Then its other lines stay, the token among them, and a model that was not named."""
    env = tmp_path / ".env"
    env.write_text("MODEL=mine\nSPECSWITCH_ADMIN_TOKEN=t\nGPUS=4\nDRAFT_MODEL=d\n")
    words = f"{FITS} --kv-cache-dtype fp8_e5m2 --env {env}"
    refused = plan(words)
    assert refused.exit_code == 2
    assert "is there already; with --force its lines that a plan decides" in refused.stderr
    assert env.read_text().startswith("MODEL=mine\nSPECSWITCH_ADMIN_TOKEN=t\nGPUS=4\n")
    forced = plan(f"{words} --force")
    assert forced.exit_code == 0
    assert "still to be set" not in forced.stderr
    env.write_text("MODEL=mine\nGRAFANA_ADMIN_PASSWORD=\n")
    assert "; still to be set in it: GRAFANA_ADMIN_PASSWORD\n" in plan(f"{words} --force").stderr
    env.write_text("MODEL=mine\nSPECSWITCH_ADMIN_TOKEN=t\nGPUS=4\nDRAFT_MODEL=d\n")
    assert plan(f"{words} --force").exit_code == 0
    text = env.read_text()
    assert text.startswith("MODEL=mine\nSPECSWITCH_ADMIN_TOKEN=t\nGPUS=1\nDRAFT_MODEL=d\n")
    flags = "--chunked-prefill-size 8192 --kv-cache-dtype fp8_e5m2"
    assert f"BASE_EXTRA_ARGS='{flags}'\n" in text


def test_what_undoes_a_plan_is_told(tmp_path: Path) -> None:
    """A model of another size, and flags that come later than the plan's."""
    env = tmp_path / ".env"
    env.write_text("MODEL=mine\nSPEC_EXTRA_ARGS='--tp=2 --lora-paths a --dtype half'\n")
    told = plan(f"{FITS} --env {env} --force").stderr
    assert "\nMODEL stays mine: is the plan for that one?\n" in told
    assert "\nSPEC_EXTRA_ARGS has --dtype, --tp, which counts in place of the plan's\n" in told
    told = plan(f"{FITS} --model org/m --env {env} --force").stderr
    assert "stays" not in told
    assert "BASE_EXTRA_ARGS" not in told


def test_a_pair_that_does_not_fit_writes_nothing(tmp_path: Path) -> None:
    """Compose would start what cannot start."""
    env = tmp_path / ".env"
    result = plan(f"{TOO_LARGE} --env {env}")
    assert result.exit_code == 1
    assert result.stderr == f"{env} was not written\n"
    assert not env.exists()


def test_a_file_that_cannot_be_written_is_1(tmp_path: Path) -> None:
    """Said before the plan; as is one that cannot be read."""
    result = plan(f"{FITS} --env {tmp_path / 'no' / '.env'}")
    assert result.exit_code == 1
    assert "cannot be written: there is no such folder" in result.stderr
    assert result.stdout == ""
    odd = tmp_path / ".env"
    odd.write_text("MODEL='a\nb'\n")
    result = plan(f"{FITS} --model m --env {odd} --force")
    assert result.exit_code == 1
    assert "line 1: MODEL goes over several lines" in result.stderr
    assert odd.read_text() == "MODEL='a\nb'\n"


def test_json_is_alone_on_standard_output(tmp_path: Path) -> None:
    """And tells of the file by being written."""
    env = tmp_path / ".env"
    result = plan(f"{FITS} --json --env {env}")
    found = json.loads(result.stdout)
    assert found["fits"] is True
    assert found["env"]["BASE_MAX_RUNNING"] == "256"
    assert result.stderr == ""
    assert env.exists()
    too_large = planned(TOO_LARGE)
    assert too_large["fits"] is False
    assert too_large["servers"] == too_large["commands"] == too_large["env"] == {}
    assert too_large["instead"]


def test_help_tells_the_exit_codes() -> None:
    """With what each means, and that all are estimates."""
    told = re.sub(r"\s+", " ", plan("--help").stdout)
    for part in ("the pair fits", "wrong usage", "130", "estimates", "doctor"):
        assert part in told
