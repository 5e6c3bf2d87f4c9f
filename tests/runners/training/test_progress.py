"""What a terminal shows of a training: the step, the loss, the speed and the time left first, all on one line."""

import re

import pytest

from runners.training.progress import TrainingProgress, summary

SCALARS = {"accuracy": 0.301, "bits_per_byte": 3.061, "grad_norm": 0.77, "learning_rate": 3e-3, "loss": 2.1221}
SCALARS |= {"mfu": 0.412, "steps_per_second": 0.5, "tokens_per_second": 1234567.0, "perplexity": 8.3}
FIRST = ("2.1221", "1,234,567 tokens/s", "6:40:00 left")


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_what_fits_on_its_line(capsys, monkeypatch, width):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    with TrainingProgress(total=24100, start=0) as progress:
        progress.report(12100, SCALARS)
    out = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
    lines = [line for line in re.split(r"[\r\n]", out) if line.strip()]
    assert all(len(line) <= width for line in lines), lines
    assert all(word in lines[-1] for word in ("12100/24100", "━" * 10, *FIRST)), lines
    assert "compiling" in lines[0]
    assert ("bits/byte" in lines[-1], "…" in out) == (width == 120, False)


def test_elsewhere_a_line_shows_everything_with_the_same_first(capsys):
    with TrainingProgress(total=24100, start=0) as progress:
        progress.report(12100, SCALARS)
    line = capsys.readouterr().out
    assert line.startswith(
        "step  12100/24100  6:40:00 left  loss 2.1221  1,234,567 tokens/s  3.061 bits/byte  MFU 41.2%"
    )
    assert line.endswith("accuracy 0.301  grad 0.77\n")


@pytest.mark.parametrize(
    ("room", "words"), [(11, "loss 2.1221"), (30, "loss 2.1221"), (31, "loss 2.1221  1,234,567 tokens/s")]
)
def test_a_summary_ends_before_what_does_not_fit(room, words):
    assert summary(SCALARS, room) == words


def test_the_time_left_counts_evaluations_after_the_first_report(capsys):
    times = iter([0.0, 30.0])
    with TrainingProgress(total=400, start=0, now=lambda: next(times)) as progress:
        progress.report(100, {**SCALARS, "steps_per_second": 10.0})
        progress.report(200, {**SCALARS, "steps_per_second": 10.0})  # 10 s of training, 20 s of an evaluation
    first, second = capsys.readouterr().out.splitlines()
    assert "  0:30 left  " in first
    assert "  1:00 left  " in second
