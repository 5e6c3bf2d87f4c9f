"""The same documents in every supported format, for tests and benchmarks."""

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Documents = Sequence[str]
SHARDS = 3


def write_all(documents: Documents, folder: Path) -> dict[str, list[str]]:
    """Writes the documents in each format; returns the --set overrides that read it, by name of the format."""
    folder.mkdir(parents=True, exist_ok=True)
    return {name: write(documents, folder / name.replace(", ", "-")) for name, write in FORMATS.items()}


def lines(documents: Documents, folder: Path) -> list[str]:
    """Writes text lines, each line of each document as one document."""
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(line for text in documents for line in text.splitlines() if line))
    return ["DATA=lines", f"DATA_PATH={folder}/*.txt"]


def files(documents: Documents, folder: Path) -> list[str]:
    """Writes a text file per document."""
    folder.mkdir()
    for number, text in enumerate(documents):
        (folder / f"{number:05}.txt").write_text(text)
    return ["DATA=files", f"DATA_PATH={folder}/*.txt"]


def text(documents: Documents, folder: Path) -> list[str]:
    """Writes one text file, read as bytes."""
    folder.mkdir()
    (folder / "all.txt").write_text("\n".join(documents))
    return ["DATA=text", f"DATA_PATH={folder}/all.txt"]


def jsonl(documents: Documents, folder: Path) -> list[str]:
    """Writes JSON lines in shards."""
    folder.mkdir()
    for shard in range(SHARDS):
        rows = [json.dumps({"text": text, "n": n}) for n, text in enumerate(documents[shard::SHARDS])]
        (folder / f"{shard}.jsonl").write_text("\n".join(rows))
    return ["DATA=jsonl", f"DATA_PATH={folder}/{{0..{SHARDS - 1}}}.jsonl"]


def huggingface(documents: Documents, folder: Path) -> list[str]:
    """Writes a Hugging Face data set to disk."""
    import datasets

    datasets.Dataset.from_dict({"text": list(documents)}).save_to_disk(str(folder))
    return ["DATA=huggingface", f"DATASET={folder}"]


def tfds(documents: Documents, folder: Path) -> list[str]:
    """Writes a prepared TFDS data set with its own splits."""
    import tensorflow_datasets

    core: Any = tensorflow_datasets.core
    features = tensorflow_datasets.features.FeaturesDict({"text": tensorflow_datasets.features.Text()})
    held_out = max(1, len(documents) // 10)

    class Builder(core.GeneratorBasedBuilder):
        VERSION = core.Version("1.0.0")
        name = "small_text"

        def _info(self):
            return self.dataset_info_from_configs(features=features)

        def _split_generators(self, manager):
            parts = {
                "train": documents[2 * held_out :],
                "validation": documents[:held_out],
                "test": documents[held_out : 2 * held_out],
            }
            return {split: self._generate_examples(part) for split, part in parts.items()}

        def _generate_examples(self, part):
            return ((number, {"text": text}) for number, text in enumerate(part))

    Builder(data_dir=str(folder)).download_and_prepare()
    return ["DATA=tfds", "DATASET=small_text", f"DATA_PATH={folder}"]


def tfrecord(documents: Documents, folder: Path) -> list[str]:
    """Writes TFRecord files of tf.train.Example."""
    import tensorflow as tf

    folder.mkdir()
    for shard in range(SHARDS):
        with tf.io.TFRecordWriter(str(folder / f"{shard}.tfrecord")) as writer:
            for text in documents[shard::SHARDS]:
                value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
                example = tf.train.Example(features=tf.train.Features(feature={"text": value}))
                writer.write(example.SerializeToString())
    return ["DATA=tfrecord", f"DATA_PATH={folder}/*.tfrecord"]


def webdataset(documents: Documents, folder: Path) -> list[str]:
    """Writes tar shards of .txt members, and an index of them."""
    folder.mkdir()
    for shard in range(SHARDS):
        _tar(folder / f"{shard}.tar", [(f"{n}.txt", text.encode()) for n, text in enumerate(documents[shard::SHARDS])])
    (folder / "index").write_text("\n".join(f"{folder}/{shard}.tar" for shard in range(SHARDS)))
    return ["DATA=webdataset", f"DATA_PATH=@{folder}/index"]


def webdataset_ids(documents: Documents, folder: Path) -> list[str]:
    """Writes tar shards of .npy members with token ids, the bytes of the text."""
    folder.mkdir()
    for shard in range(SHARDS):
        members = []
        for number, text in enumerate(documents[shard::SHARDS]):
            stream = io.BytesIO()
            np.save(stream, np.frombuffer(text.encode(), np.uint8).astype(np.int64))
            members.append((f"{number}.input_id.npy", stream.getvalue()))
        _tar(folder / f"{shard}.tar", members)
    return ["DATA=webdataset", f"DATA_PATH={folder}/{{0..{SHARDS - 1}}}.tar", "DATA_MEMBER=input_id.npy"]


def tokens(documents: Documents, folder: Path) -> list[str]:
    """Writes contiguous token ids as nanoGPT does: the bytes of the text, a zero after each document."""
    folder.mkdir()
    ids = np.frombuffer("\0".join([*documents, ""]).encode(), np.uint8).astype(np.uint16)
    ids.tofile(folder / "ids.bin")
    return ["DATA=tokens", f"DATA_PATH={folder}/ids.bin"]


def _tar(path: Path, members: Sequence[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


FORMATS: dict[str, Callable[[Documents, Path], list[str]]] = {
    "text": text,
    "lines": lines,
    "files": files,
    "jsonl": jsonl,
    "huggingface": huggingface,
    "tfds": tfds,
    "tfrecord": tfrecord,
    "webdataset": webdataset,
    "webdataset, ids": webdataset_ids,
    "tokens": tokens,
}
