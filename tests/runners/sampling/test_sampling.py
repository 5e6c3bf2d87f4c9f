"""Sampling from the command line: as it is drawn or at the end, in a window, by every rule."""

import pytest

from tests.support.plugins import commands


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    knobs = ["NUM_STEPS=4", "EVAL_ROWS=8", "DEVICE_MESH_SHAPE=2,1", "EVAL_EVERY=none"]
    flags = [f"--set={knob}" for knob in knobs]
    command = ["--exp=gpt.GptStdlib", "--smoke", f"--workdir={folder}", "--no-tensorboard", *flags]
    done = commands.inside(folder, "runners.main", *command, devices=2)
    assert done.returncode == 0, done.stderr
    return folder


def sampled(workdir, *flags):
    """The text, the number of tokens, and what went wrong."""
    shown = [f"--workdir={workdir}", "--mode=sample", "--prompt=def f", "--no-stop"]
    done = commands.inside(workdir, "runners.main", *shown, *flags, devices=2)
    if done.returncode:
        return done.stderr, done.returncode
    return done.stdout.partition("\n[")[0], done.stdout.partition("\n[")[2].partition(" ")[0]


@pytest.mark.parametrize("rules", [[], ["--typical_p=0.8", "--repetition_penalty=1.3"]], ids=["plain", "rules"])
def test_shown_as_it_is_drawn_or_at_the_end(workdir, rules):
    flags = ["--max_new_tokens=29", "--temperature=1.5", *rules]
    late, now = (sampled(workdir, *flags, choice) for choice in ("--no-stream", "--stream"))
    assert late == now
    assert late[1] == "29"
    assert late[0].startswith("def f")


def test_a_window_lets_text_continue(workdir):
    text, count = sampled(workdir, "--window=8", "--max_new_tokens=80", "--stream")
    assert count == "80"
    wide, _ = sampled(workdir, "--window=500", "--max_new_tokens=80", "--temperature=0")
    whole, _ = sampled(workdir, "--max_new_tokens=80", "--temperature=0")
    assert wide == whole
    assert text.startswith("def f")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--window=0"], "--window must be at least 1 (got 0)"),
        (["--typical_p=2"], "typical_p must be above 0 and at most 1 (got 2.0)"),
        (["--eta=0"], "eta must be above 0 and at most 1 (got 0.0)"),
        (["--repetition_penalty=-1"], "repetition_penalty must be above 0 (got -1.0)"),
    ],
)
def test_bad_requests(workdir, flags, message):
    output, code = sampled(workdir, *flags)
    assert code == 2
    assert message in output
    assert output.count("\n") == 1
