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


def test_a_draft_changes_no_greedy_token(workdir):
    """On two devices; the model is its own draft, so each pass accepts all tokens."""
    flags = ["--max_new_tokens=31", "--temperature=0", "--num_samples=2", "--prompt=class"]
    plain, drafted = sampled(workdir, *flags), sampled(workdir, *flags, f"--draft={workdir}@last", "--draft_tokens=5")
    assert plain == drafted
    shown = commands.inside(
        workdir,
        "runners.main",
        f"--workdir={workdir}",
        "--mode=sample",
        "--no-stop",
        *flags,
        f"--draft={workdir}",
        devices=2,
    )
    assert "5.00 tokens per pass with a draft of 4]" in shown.stdout


def test_what_prompts_share_is_read_once(workdir):
    start = "import os and so on, " * 4
    flags = [f"--prompt={start}def", f"--prompt={start}class A", "--max_new_tokens=9", "--temperature=0"]
    asked = [f"--workdir={workdir}", "--mode=sample", "--no-stop", *flags]
    together = commands.inside(workdir, "runners.main", *asked, devices=2).stdout
    assert together.startswith("The prompts share their first 64 tokens, which are read once.\n--- sample 1\n")
    alone = [commands.inside(workdir, "runners.main", *asked[:3], flag, *flags[2:], devices=2) for flag in flags[:2]]
    for one in alone:
        assert one.stdout.partition("\n\n[")[0] in together


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--draft=none"], "--draft=none: The workdir 'none' does not exist. Train first"),
        (["--draft=.@7"], "--draft=.@7: Unknown checkpoint '7'. Choose last, best or one of 4."),
        (["--draft=.", "--draft_tokens=0"], "--draft_tokens must be 1 to 14 (got 0)."),
        (["--draft=.", "--load_state=a"], "--load_state has no state of a draft. Remove --draft or --load_state."),
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
