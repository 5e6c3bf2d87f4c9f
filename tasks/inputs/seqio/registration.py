"""Registering seqio Tasks: text lines, TFDS, TFExamples and functions, as tokens of one vocabulary.

A module that calls these functions serves the runner (`--import=MODULE`) and seqio's own caching tool
(`seqio_cache_tasks --module_import=MODULE`) alike. Tasks written with seqio itself do as well.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from layers.errors import UsageError
from tasks.inputs.seqio.library import libraries

TEXT = {"targets": "text"}  # feature of the task: field of the source


def lines_task(
    name: str, files: Mapping[str, str | Sequence[str]], vocabulary: Any = "bytes", features: Mapping[str, str] = TEXT
) -> str:
    """Registers the lines of text files, by split, as `vortaro_lines:NAME`; returns that name.

    Args:
      name: letters, digits, `_`, `.` and `:`.
      files: path or pattern, or several, of each split.
      vocabulary: "bytes", the path of a SentencePiece model, or a seqio Vocabulary.
      features: the one feature, by default "targets", that a line becomes.

    Raises:
      UsageError: the name is taken or not valid, or seqio is not installed.
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
      dataset: as TFDS calls it, with configuration and version where wanted: `imagenet_resized/64x64:0.1.0`. Without
        a version it is the newest there.
      data_dir: the folder of TFDS data sets, local or gs://; None is TFDS's own (TFDS_DATA_DIR).
      splits: TFDS split or slice (`train[:90%]`) of each split; None is TFDS's own.
      vocabulary: as in `lines_task`.
      features: field of the data set that each feature comes from.
      content: text, or pixels in raster order: the bytes of one image, with no end token behind them.

    Raises:
      UsageError: as in `lines_task`. Whether the data is there shows when it is read.
    """
    seqio, _ = libraries()
    chosen = None if splits is None else dict(splits)
    dataset = dataset if ":" in dataset else f"{dataset}:*.*.*"  # seqio wants a version
    source = seqio.TfdsDataSource(dataset, tfds_data_dir=data_dir, splits=chosen, read_only=True)
    return _register(f"vortaro_tfds:{name}", source, features, vocabulary, content=content)


def tfexample_task(
    name: str, files: Mapping[str, str | Sequence[str]], vocabulary: Any = "bytes", features: Mapping[str, str] = TEXT
) -> str:
    """Registers TFRecord files of tf.Examples with fields of text as `vortaro_tfexamples:NAME`; as `lines_task`."""
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
    """Registers what a function of the split's name yields, dicts of text, as `vortaro_function:NAME`.

    The function must yield the same at every call: that is what a resumed run and several hosts rely on. Its Python
    runs outside of what TensorFlow can save, so that a resumed run reads through from the start unless it is cached.

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
    """The seqio Vocabulary: bytes behind three special tokens, that of a SentencePiece file, or what is given."""
    seqio, tf = libraries()
    if vocabulary == "bytes":
        return seqio.ByteVocabulary()
    if not isinstance(vocabulary, str):
        return vocabulary
    if not tf.io.gfile.exists(vocabulary):
        raise UsageError(f"There is no SentencePiece model '{vocabulary}': name its file, or say \"bytes\".")
    return seqio.SentencePieceVocabulary(vocabulary)


def _register(
    name: str,
    source: Any,
    features: Mapping[str, str],
    vocabulary: Any,
    before: Sequence[Callable] = (),
    content: Literal["text", "pixels"] = "text",
) -> str:
    """Adds the Task: fields renamed and tokenized before the cache, ended and cut to rows behind it."""
    seqio, _ = libraries()
    if name in seqio.TaskRegistry.names():
        raise UsageError(f"A seqio task '{name}' is registered already: choose another name.")
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
        raise UsageError(f"seqio does not take the task '{name}': {str(error).rstrip('.')}.") from error
    return name


def cut_to_rows(dataset: Any, sequence_length: Mapping[str, int] | None = None) -> Any:
    """Cuts "targets" longer than a row into consecutive pieces of its length, the last one shorter.

    A preprocessor for behind the cache: documents longer than a row train as a whole, where seqio would trim them.
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
    """Images as the tokens of their bytes, in raster order: the three special tokens of bytes stand before."""
    _, tf = libraries()
    encode = lambda image: tf.reshape(tf.cast(image, tf.int32), [-1]) + 3
    return _map(dataset, lambda example: {"targets": encode(example["targets"])})


def _map(dataset: Any, function: Callable) -> Any:
    _, tf = libraries()
    return dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)


@contextlib.contextmanager
def unprepared(task: str) -> Iterator[None]:
    """Turns what data libraries raise where data is missing into one sentence."""
    _, tf = libraries()
    known = (ValueError, OSError, AssertionError, KeyError, ImportError, tf.errors.OpError)
    try:
        yield
    except known as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        if ("unexpected" in reason and "seed" in reason) or "'seed'" in reason:
            reason = "its source is a function without the argument `seed`: add `seed=None`"
        raise UsageError(f"seqio cannot read the data of task '{task}': {reason}.") from error
