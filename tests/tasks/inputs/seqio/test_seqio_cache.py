"""seqio's own caching tool on our tasks."""

from tasks.inputs.seqio.rows import SeqioInput
from tests.tasks.inputs.seqio.test_seqio_input import texts_of

MODULE = """
from tasks.inputs.seqio.registration import lines_task

lines_task("test_cached", {{"train": "{0}/lines.txt", "validation": "{0}/held.txt"}})
"""


def test_cached_examples_are_those_of_the_source(seqio_tasks, command, tmp_path):
    import importlib
    import sys

    (tmp_path / "cached_tasks.py").write_text(MODULE.format(seqio_tasks.folder))
    tool = ["--tasks=vortaro_lines:test_cached", "--module_import=cached_tasks", "--output_cache_dir=cache"]
    done = command("seqio.scripts.cache_tasks_main", *tool, "--min_shards=2")
    assert done.returncode == 0, done.stderr[-2000:]
    sys.path.insert(0, str(tmp_path))
    try:
        importlib.import_module("cached_tasks")
    finally:
        sys.path.remove(str(tmp_path))
    shape = {"task": "vortaro_lines:test_cached", "batch_size": 4, "seq_len": 64, "num_epochs": 1, "shuffle": False}
    cached = SeqioInput(use_cached=True, cache_dir=str(tmp_path / "cache"), **shape)
    assert sorted(texts_of(cached, cached.num_batches())) == sorted(seqio_tasks.texts)
    assert ", cached" in cached.describe()
    assert len(list((tmp_path / "cache").glob("vortaro_lines/test_cached/train*tfrecord*"))) == 2
