"""Registration of seqio Tasks: text lines, TFDS, TFExamples and functions, as tokens of one vocabulary.

A module that calls these functions works with the runner (`--import=MODULE`) and with seqio's caching tool
(`seqio_cache_tasks --module_import=MODULE`). So do Tasks written with seqio itself.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from layers.errors import UsageError
from tasks.inputs.seqio.library import libraries

TEXT = {"targets": "text"}  # {feature of the task: field of the source}


def lines_task(
    name: str, files: Mapping[str, str | Sequence[str]], vocabulary: Any = "bytes", features: Mapping[str, str] = TEXT
) -> str:
    """Registers the lines of text files as `vortaro_lines:NAME`; returns that name.

    Args:
      name: letters, digits, `_`, `.` and `:`.
      files: for each split, one or several paths or patterns.
      vocabulary: "bytes", the path of a SentencePiece model, or a seqio Vocabulary.
      features: the feature that contains a line, by default "targets".

    Raises:
      UsageError: the name is registered already or invalid, or seqio is not installed.
    """
    seqio, _ = libraries()
    field = next(iter(features.values()))
    wrap = functools.partial(_map, function=lambda line: {field: line})
    return _register(
        f"vortaro_lines:{name}", seqio.TextLineDataSource(dict(files)), features, vocabulary, before=[wrap]
    )


def tfds_task(
    name: str,
    dataset: str,
    data_dir: str | None = None,
    splits: Mapping[str, str] | None = None,
    vocabulary: Any = "bytes",
    features: Mapping[str, str] = TEXT,
    content: Literal["text", "pixels"] = "text",
) -> str:
    """Registers a data set that TFDS has prepared as `vortaro_tfds:NAME`; returns that name.

    Args:
      name: letters, digits, `_`, `.` and `:`.
      dataset: its TFDS name, with optional configuration and version: `imagenet_resized/64x64:0.1.0`. Without a
        version, the newest prepared one.
      data_dir: the folder of TFDS data sets, local or gs://; None is TFDS's default (TFDS_DATA_DIR).
      splits: for each split, a TFDS split or slice (`train[:90%]`); None is TFDS's splits.
      vocabulary: as in `lines_task`.
      features: for each feature, its field in the data set.
      content: text, or pixels in raster order: the bytes of one image, without an end token.

    Raises:
      UsageError: as in `lines_task`. Missing data is an error only when it is read.
    """
    seqio, _ = libraries()
    chosen = None if splits is None else dict(splits)
    dataset = dataset if ":" in dataset else f"{dataset}:*.*.*"  # seqio requires a version
    source = seqio.TfdsDataSource(dataset, tfds_data_dir=data_dir, splits=chosen, read_only=True)
    return _register(f"vortaro_tfds:{name}", source, features, vocabulary, content=content)


def tfexample_task(
    name: str, files: Mapping[str, str | Sequence[str]], vocabulary: Any = "bytes", features: Mapping[str, str] = TEXT
) -> str:
    """Registers TFRecord files of tf.Examples with text fields as `vortaro_tfexamples:NAME`; like `lines_task`."""
    seqio, tf = libraries()
    fields = {field: tf.io.FixedLenFeature([], tf.string) for field in features.values()}
    source = seqio.TFExampleDataSource(dict(files), feature_description=fields)
    return _register(f"vortaro_tfexamples:{name}", source, features, vocabulary)


def function_task(
    name: str,
    function: Callable[[str], Iterator[Mapping[str, str]]],
    splits: Sequence[str],
    vocabulary: Any = "bytes",
    features: Mapping[str, str] = TEXT,
) -> str:
    """Registers `function(split)`, which yields dicts of text, as `vortaro_function:NAME`; returns that name.

    The function must yield the same values at every call, because resumed runs and several hosts depend on it.
    TensorFlow cannot save its position, so that a resumed run reads from the start unless the task is cached.

    Raises:
      UsageError: as in `lines_task`.
    """
    seqio, tf = libraries()
    signature = {field: tf.TensorSpec([], tf.string) for field in features.values()}

    def dataset(split: str, shuffle_files: bool, seed: int | None = None) -> Any:
        return tf.data.Dataset.from_generator(lambda: function(split), output_signature=signature)

    source = seqio.FunctionDataSource(dataset, splits=tuple(splits))
    return _register(f"vortaro_function:{name}", source, features, vocabulary)


def seqio_vocabulary(vocabulary: Any) -> Any:
    """Returns the seqio Vocabulary: bytes after three special tokens, that of a SentencePiece file, or the argument."""
    seqio, tf = libraries()
    if vocabulary == "bytes":
        return seqio.ByteVocabulary()
    if not isinstance(vocabulary, str):
        return vocabulary
    if not tf.io.gfile.exists(vocabulary):
        raise UsageError(
            f"The SentencePiece model '{vocabulary}' does not exist. Pass the path of a model, or \"bytes\"."
        )
    return seqio.SentencePieceVocabulary(vocabulary)


def _register(
    name: str,
    source: Any,
    features: Mapping[str, str],
    vocabulary: Any,
    before: Sequence[Callable] = (),
    content: Literal["text", "pixels"] = "text",
) -> str:
    """Adds the Task: renames and tokenizes fields before the cache, appends end tokens and cuts to rows after it."""
    seqio, _ = libraries()
    if name in seqio.TaskRegistry.names():
        raise UsageError(f"The seqio task '{name}' is already registered. Choose another name.")
    rename = functools.partial(seqio.preprocessors.rekey, key_map=dict(features))
    if content == "pixels":
        encode, after = _pixels, [cut_to_rows]
    else:
        encode = functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False)
        ended = [seqio.preprocessors.append_eos, cut_to_rows]
        after = ended if set(features) == {"targets"} else [seqio.preprocessors.append_eos_after_trim]
    feature = functools.partial(seqio.Feature, seqio_vocabulary(vocabulary), add_eos=content == "text", required=True)
    try:
        seqio.TaskRegistry.add(
            name,
            source=source,
            preprocessors=[*before, rename, encode, seqio.CacheDatasetPlaceholder(), *after],
            output_features={key: feature() for key in features},
        )
    except ValueError as error:
        raise UsageError(f"seqio rejected the task '{name}': {str(error).rstrip('.')}.") from error
    return name


def cut_to_rows(dataset: Any, sequence_length: Mapping[str, int] | None = None) -> Any:
    """Cuts "targets" longer than a row into consecutive pieces of its length, the last one shorter.

    A preprocessor to run after the cache: all tokens of long documents are used, where seqio would trim them.
    """
    if sequence_length is None or "targets" not in sequence_length:
        return dataset
    _, tf = libraries()
    length = sequence_length["targets"]

    def pieces(example: Mapping[str, Any]) -> Any:
        tokens = example["targets"]
        count = tf.cast(-(-tf.size(tokens) // length), tf.int64)
        cut = lambda number: {"targets": tokens[number * length : (number + 1) * length]}
        return tf.data.Dataset.range(count, output_type=tf.int64).map(lambda number: cut(tf.cast(number, tf.int32)))

    return dataset.flat_map(pieces)


def _pixels(dataset: Any) -> Any:
    """Converts images to tokens of their bytes in raster order: byte b is token b + 3, after three special tokens."""
    _, tf = libraries()
    encode = lambda image: tf.reshape(tf.cast(image, tf.int32), [-1]) + 3
    return _map(dataset, lambda example: {"targets": encode(example["targets"])})


def _map(dataset: Any, function: Callable) -> Any:
    _, tf = libraries()
    return dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)


@contextlib.contextmanager
def unprepared(task: str) -> Iterator[None]:
    """Turns the errors that data libraries raise for missing data into a UsageError."""
    _, tf = libraries()
    known = (ValueError, OSError, AssertionError, KeyError, ImportError, tf.errors.OpError)
    try:
        yield
    except known as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        if ("unexpected" in reason and "seed" in reason) or "'seed'" in reason:
            reason = "its source is a function without a `seed` argument. Add `seed=None`"
        raise UsageError(f"seqio cannot read the data of task '{task}': {reason}.") from error
