"""tf.data pipelines of rows, built from registered seqio tasks."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from layers.errors import UsageError, did_you_mean
from tasks.batch import Batch
from tasks.inputs.indexed import Shard
from tasks.inputs.seqio.library import libraries
from tasks.inputs.seqio.registered import feature_of, splits_of
from tasks.inputs.seqio.registration import unprepared

Objective = Literal["lm", "prefix_lm", "encoder"]
NO_MASK = -1


def converter(objective: Objective, pack: bool, *, mask_id: int | None, loss_on_targets_only: bool) -> Any:
    """Returns seqio's feature converter for the objective."""
    seqio, _ = libraries()
    if objective == "encoder":
        return seqio.EncoderFeatureConverter(mask_id=NO_MASK if mask_id is None else mask_id, pack=pack)
    if objective == "prefix_lm":
        return seqio.PrefixLMFeatureConverter(loss_on_targets_only=loss_on_targets_only, pack=pack)
    return seqio.LMFeatureConverter(pack=pack)


def check_features(task: Any, objective: Objective) -> None:
    """Raises a UsageError unless the task has the features that the objective reads."""
    for feature in ("targets",) if objective == "lm" else ("targets", "inputs"):
        feature_of(task, feature, f"the objective {objective}")


def pick_split(task: Any, split: str, instead: str | None) -> str:
    """Returns the split to read: `split`, or `instead` if the task has no `split`.

    Raises:
      UsageError: the task has neither.
    """
    there = splits_of(task)
    for candidate in (split, instead):
        if candidate in there:
            return candidate
    raise UsageError(f"seqio task '{task.name}' has no split '{split}'. {did_you_mean(split, there)}")


def check_cached(task: Any, cache_dir: str | None) -> None:
    """Adds `cache_dir` to seqio's cache folders; raises a UsageError unless the task is cached in one of them."""
    seqio, _ = libraries()
    if cache_dir is not None and cache_dir not in seqio.utils.get_global_cache_dirs():
        seqio.add_global_cache_dirs([cache_dir])
    folders = seqio.utils.get_global_cache_dirs()
    for part in seqio.get_subtasks(task):
        if not part.supports_caching:
            raise UsageError(
                f"seqio task '{part.name}' cannot be cached: its preprocessors have no seqio.CacheDatasetPlaceholder()."
            )
        if part.cache_dir is None:
            where = " or ".join(f"'{folder}'" for folder in folders) or "any folder (SEQIO_CACHE_DIR names one)"
            raise UsageError(
                f"seqio task '{part.name}' is not cached in {where}. Run `seqio_cache_tasks --tasks={part.name} "
                f"--output_cache_dir={cache_dir or 'DIR'} --module_import=MODULE`, or set SEQIO_CACHED=false."
            )


def rows_of(
    task: Any,
    lengths: Mapping[str, int],
    feature_converter: Any,
    *,
    split: str,
    use_cached: bool,
    shuffle: bool,
    seed: int,
    num_epochs: int | None,
    shard: Shard,
) -> Any:
    """Returns a tf.data.Dataset of single rows, in an order determined by the seed.

    With several shards, seqio assigns each its own files, or every n-th example if there are fewer files than shards.
    """
    seqio, tf = libraries()
    mixture = {"log_mixing_proportions": False} if isinstance(task, seqio.Mixture) else {}
    with unprepared(task.name):
        dataset = task.get_dataset(
            sequence_length=lengths,
            split=split,
            use_cached=use_cached,
            shuffle=shuffle,
            seed=seed,
            shard_info=seqio.ShardInfo(shard.index, shard.count) if shard.count > 1 else None,
            num_epochs=num_epochs,
            try_in_mem_cache=False,  # a cache in memory would be part of every snapshot
            **mixture,
        )
        dataset = feature_converter(dataset, lengths)
    options = tf.data.Options()
    options.deterministic = True
    # Snapshots contain the shuffle buffers. TensorFlow's symbolic ones (experimental_symbolic_checkpoint) are small,
    # but attach the state of the entire buffer to each element: a hundred times slower, minutes for mixtures.
    return dataset.with_options(options)


def batch_of(element: Mapping[str, np.ndarray], objective: Objective, mask_id: int | None) -> Batch:
    """Converts the output of a feature converter for some rows to a Batch; rows of zeros remain padding."""
    side = "encoder" if objective == "encoder" else "decoder"
    part = lambda name: np.asarray(element[f"{side}_{name}"], np.int32)
    inputs, targets, weights = part("input_tokens"), part("target_tokens"), part("loss_weights")
    if objective == "encoder" and mask_id is None:
        weights = targets != 0
    weights = weights.astype(np.float32)
    if f"{side}_segment_ids" in element:
        return Batch(inputs, targets, weights, part("segment_ids"), part("positions"))
    # Inputs of a decoder begin with a zero, and targets of an encoder are zero where nothing is predicted.
    return Batch(inputs, targets, weights, is_token=(inputs if objective == "encoder" else targets) != 0)
