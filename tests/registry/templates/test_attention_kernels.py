"""Kernels of attention that an experiment names are checked for the platform that has them, on any machine."""

import pytest

from layers.errors import UsageError
from registry.checks import check
from registry.resolve import resolve


def entry(*sets):
    return resolve("tiny.StdlibTiny", overrides=sets, smoke=True)


@pytest.mark.parametrize("kernel", ["cudnn", "splash"])
def test_a_kernel_of_another_machine_passes_the_check(kernel):
    experiment = entry(f"ATTENTION_IMPLEMENTATION={kernel}", "DTYPE=bfloat16", "SEQ_LEN=128", "HEAD_DIM=8")
    check(experiment)
    with pytest.raises(UsageError, match=rf"{kernel} needs a [GT]PU \(got cpu\). Set it to auto"):
        check(experiment, platform="cpu")
    with pytest.raises(UsageError, match=f"{kernel} does not support dropout on attention. Set only one of them"):
        check(entry(f"ATTENTION_IMPLEMENTATION={kernel}", "DTYPE=bfloat16", "SEQ_LEN=128", "HEAD_DIM=8", "DROPOUT=0.1"))


def test_the_length_of_training_rows_is_checked():
    with pytest.raises(UsageError, match="splash does not support rows that are not a multiple of 128 positions"):
        check(entry("ATTENTION_IMPLEMENTATION=splash", "SEQ_LEN=100"))
