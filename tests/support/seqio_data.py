"""Small data sets in real formats, registered as seqio tasks by the fixture in conftest.py; imports seqio itself."""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from tasks.inputs.seqio.registration import function_task, lines_task, tfds_task, tfexample_task


@dataclasses.dataclass(frozen=True)
class Tasks:
    """Names of what is registered, and what it holds."""

    lines: str
    many_files: str
    tfds: str
    tfexamples: str
    function: str
    pairs: str
    masked: str
    mixture: str
    pixels: str
    texts: list[str]
    folder: Path


def texts(count: int, tag: str = "line") -> list[str]:
    """So many different texts, none longer than 40 bytes."""
    return [f"{tag} {number:03d} " + "abcdefghij" * (number % 4) for number in range(count)]


def register(folder: Path) -> Tasks:
    """Writes the files and registers the tasks."""
    train, held_out = texts(60), texts(10, "held")
    lines = {"train": folder / "lines.txt", "validation": folder / "held.txt"}
    for path, some in zip(lines.values(), (train, held_out), strict=True):
        path.write_text("\n".join(some) + "\n")
    for part in range(4):
        (folder / f"part-{part}.txt").write_text("\n".join(train[part * 15 : part * 15 + 15]) + "\n")
    examples = [tf.train.Example() for _ in train]
    with tf.io.TFRecordWriter(str(folder / "data.tfrecord")) as writer:
        for example, text in zip(examples, train, strict=True):
            example.features.feature["text"].bytes_list.value.append(text.encode())
            writer.write(example.SerializeToString())
    seqio.MixtureRegistry.add(
        "test_mixture",
        [
            (lines_task("test_a", {"train": str(lines["train"])}), 1),
            (lines_task("test_b", {"train": str(lines["validation"])}), 2),
        ],
    )
    return Tasks(
        lines=lines_task("test", {split: str(path) for split, path in lines.items()}),
        many_files=lines_task("test_parts", {"train": str(folder / "part-*.txt")}),
        tfds=tfds_task("test", _texts_in_tfds(folder, train), data_dir=str(folder / "tfds")),
        tfexamples=tfexample_task("test", {"train": str(folder / "data.tfrecord")}),
        function=function_task("test", lambda split: ({"text": text} for text in train), ["train"]),
        pairs=function_task("pairs", _pairs, ["train"], features={"inputs": "question", "targets": "answer"}),
        masked=_masked(),
        mixture="test_mixture",
        pixels=tfds_task(
            "pixels", _images(folder), str(folder / "tfds"), features={"targets": "image"}, content="pixels"
        ),
        texts=train,
        folder=folder,
    )


def _pairs(split: str):
    return ({"question": "q" * (number % 3 + 1), "answer": "a" * (number % 4 + 1)} for number in range(40))


def _texts_in_tfds(folder: Path, some: list[str]) -> str:
    data = tf.data.Dataset.from_tensor_slices({"text": some})
    return _store(folder, "small_texts", {"text": tfds.features.Text()}, data)


def _images(folder: Path) -> str:
    images = np.arange(5 * 2 * 2 * 3, dtype=np.uint8).reshape(5, 2, 2, 3)
    features = {"image": tfds.features.Image(shape=(2, 2, 3), encoding_format="png")}
    return _store(folder, "small_images", features, tf.data.Dataset.from_tensor_slices({"image": images}))


def _store(folder: Path, name: str, features, data) -> str:
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets={"train": data},
        data_dir=folder / "tfds",
        disable_shuffling=True,
    )
    return name


def _masked() -> str:
    """A task with aligned "inputs" and "targets"; 9 replaces what is hidden."""

    def dataset(split, shuffle_files, seed=None):
        targets = [[8, 7, 4, 3, 4, 1], [8, 3, 6, 1]]
        inputs = [[8, 9, 9, 3, 4, 1], [8, 3, 9, 1]]
        signature = dict.fromkeys(("inputs", "targets"), tf.TensorSpec([None], tf.int32))
        rows = [{"inputs": i, "targets": t} for i, t in zip(inputs, targets, strict=True)]
        return tf.data.Dataset.from_generator(lambda: rows, output_signature=signature)

    feature = functools.partial(seqio.Feature, seqio.PassThroughVocabulary(20), add_eos=False)
    seqio.TaskRegistry.add(
        "test_masked",
        source=seqio.FunctionDataSource(dataset, splits=["train"]),
        preprocessors=[],
        output_features={"inputs": feature(), "targets": feature()},
    )
    return "test_masked"
