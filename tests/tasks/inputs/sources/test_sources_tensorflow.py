"""Data sets that TFDS prepared, TFRecord files of tf.train.Example."""

import bz2
import gzip
import lzma
import pickle
import sys
import tempfile
from pathlib import Path

import fsspec
import pytest

from layers.errors import UsageError
from tasks.inputs.seqio.tf_cursor import TfCursor
from tasks.inputs.sources.documents import Skipped
from tasks.inputs.sources.tfds import Tfds
from tasks.inputs.sources.tfrecords import TfExamples
from tasks.quiet_imports import tensorflow

tfds = pytest.importorskip("tensorflow_datasets", reason="needs TFDS: pip install -e '.[tfds]'")
tf = pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install -e '.[tfds]'")

BOOKS = {"train": [f"book {i}" for i in range(7)], "validation": ["held out", ""], "test": ["at last", "and least"]}
DATA = {"books": BOOKS, "wiki": {"train": ["a", "b"]}}


def read(source, split=None):
    """All documents, through a pickle: parts are read by other processes."""
    return [document for part in source.parts(split) for document in pickle.loads(pickle.dumps(part)).read()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two data sets as TFDS writes them: one with splits and two shards, one without."""
    folder = str(tmp_path_factory.mktemp("tfds"))

    class Base(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.2.0")

        def _info(self):
            ids = tfds.features.Sequence(tfds.features.Scalar(tf.int64))
            features = {"text": tfds.features.Text(), "ids": ids}
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, manager):
            return {split: self._generate_examples(texts) for split, texts in DATA[self.name].items()}

        def _generate_examples(self, texts):
            for i, text in enumerate(texts):
                yield i, {"text": text, "ids": list(range(i))}

    class Books(Base):
        name = "books"

    class Wiki(Base):
        name = "wiki"

    shards = tfds.download.DownloadConfig(num_shards=2)
    for builder in (Books(data_dir=folder), Wiki(data_dir=folder)):
        builder.download_and_prepare(download_config=shards if builder.name == "books" else None)
    return folder


def test_official_splits_in_shards(folder):
    source = Tfds(name="books", data_dir=folder)
    assert source.has_splits
    parts = source.parts("train")
    assert [part.name for part in parts] == [f"books/1.2.0 train[{r}]" for r in ("0:4", "4:7")]
    examples = tfds.as_numpy(tfds.load("books", split="train", data_dir=folder))
    in_order = [example["text"].decode() for example in examples]
    assert read(source, "train") == in_order
    assert sorted(in_order) == BOOKS["train"]
    assert set(read(source, "test")) == set(BOOKS["test"])
    assert set(read(source, "validation")) == {"held out", Skipped("empty")}
    ids = read(Tfds(name="books:1.*.*", data_dir=folder, column="ids"), "train")
    assert sorted(len(row) for row in ids if not isinstance(row, Skipped)) == [1, 2, 3, 4, 5, 6]
    assert Tfds(name="books", data_dir=folder, column="ids").parts("train")[0].version != parts[0].version
    only = Tfds(name="books", data_dir=folder, splits={"train": "test"})
    assert read(only) == read(source, "test")


def test_without_official_splits(folder):
    source = Tfds(name="wiki", data_dir=folder)
    assert not source.has_splits
    assert sorted(read(source)) == ["a", "b"]
    with pytest.raises(UsageError, match=r"no splits of its own"):
        source.parts("train")


def test_what_can_be_wrong_with_a_data_set(folder, tmp_path):
    with pytest.raises(UsageError, match=r"has no column 'txt', only 'ids', 'text'. Did you mean 'text'"):
        Tfds(name="books", data_dir=folder, column="txt").parts("train")
    with pytest.raises(UsageError, match=r"no split 'tset'. Did you mean 'test'"):
        Tfds(name="books", data_dir=folder, splits={"train": "tset"}).parts("train")
    with pytest.raises(UsageError, match=r"TFDS has no data set 'books' in '.*tfds build books"):
        Tfds(name="books", data_dir=str(tmp_path)).parts("train")
    part = Tfds(name="wiki", data_dir=folder).parts(None)[0]
    (file,) = (tmp_path.__class__(folder) / "wiki").glob("*/*.tfrecord*")
    content = file.read_bytes()
    file.write_bytes(content[:-3])
    with pytest.raises(UsageError, match=r"'wiki' cannot be read after example 1 of train"):
        list(part.read())
    file.unlink()
    with pytest.raises(UsageError, match=r"'wiki' cannot be read after example 0 of train"):
        list(part.read())
    file.write_bytes(content)


def test_without_the_libraries_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tfrecord", example(text=[b"a"]))
    for module, source in [("tensorflow_datasets", Tfds(name="books")), ("tensorflow", TfExamples(files=path))]:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(UsageError, match=r"pip install 'vortaro\[tfds\]'"):
            read(source)


def example(**features):
    kinds = {
        bytes: lambda values: tf.train.Feature(bytes_list=tf.train.BytesList(value=values)),
        int: lambda values: tf.train.Feature(int64_list=tf.train.Int64List(value=values)),
        float: lambda values: tf.train.Feature(float_list=tf.train.FloatList(value=values)),
    }
    made = {key: kinds[type((values or [b""])[0])](values) for key, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def write(path, *records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def test_examples(tmp_path):
    full = example(text=["é".encode()], ids=[3, 70000], odd=[1.0])
    path = write(tmp_path / "a.tfrecord", full, example(text=[b"\xff"]), example(text=[b"a", b"b"]), example(text=[]))
    utf8, two, null = Skipped("invalid UTF-8"), Skipped("neither text nor a row of token ids"), Skipped("null")
    assert read(TfExamples(files=path)) == ["é", utf8, two, null]
    ids = read(TfExamples(files=path, column="ids"))
    assert ids[0].tolist() == [3, 70000]
    assert ids[1:] == [Skipped("no such column")] * 3
    (tmp_path / "a.tfrecord.gz").write_bytes(gzip.compress((tmp_path / "a.tfrecord").read_bytes()))
    assert read(TfExamples(files=f"{path}.gz")) == read(TfExamples(files=path))
    held = TfExamples(files=path, validation_files=f"{path}.gz")
    assert read(held, "validation") == read(TfExamples(files=path))


def test_examples_that_tensorflow_cannot_reach_itself(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tfrecord", *(example(text=[text]) for text in (b"one", b"two")))
    content = Path(path).read_bytes()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    for suffix, pack in ((".bz2", bz2.compress), (".xz", lzma.compress)):
        Path(path + suffix).write_bytes(pack(content))
        assert read(TfExamples(files=path + suffix)) == ["one", "two"]
        Path(path + suffix).write_bytes(pack(content[:-3]))
        with pytest.raises(UsageError, match=rf"a.tfrecord{suffix}' is cut off or damaged after record 1"):
            read(TfExamples(files=path + suffix))
        Path(path + suffix).write_bytes(pack(content)[:-3])
        with pytest.raises(UsageError, match=rf"a.tfrecord{suffix}' is damaged or cut off: "):
            read(TfExamples(files=path + suffix))
    far = fsspec.filesystem("memory")
    far.pipe_file("/records/a.tfrecord", content)
    far.pipe_file("/records/a.tfrecord.gz", gzip.compress(content))
    assert read(TfExamples(files="memory://records/a.tfrecord*")) == ["one", "two"] * 2
    assert not list((tmp_path / "temporary").iterdir())
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(UsageError, match=r"a.tfrecord' cannot be copied into '/proc' .*\. Set TMPDIR to a folder"):
        read(TfExamples(files="memory://records/a.tfrecord"))


def test_accelerators_are_left_to_jax(folder, tmp_path, monkeypatch):
    hidden = []
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda devices, kind: hidden.append((devices, kind)))
    sources = [
        TfExamples(files=write(tmp_path / "a.tfrecord", example(text=[b"a"]))).parts(None)[0].read,
        lambda: Tfds(name="wiki", data_dir=folder).parts(None),
        Tfds(name="wiki", data_dir=folder).parts(None)[0].read,
        lambda: [TfCursor(lambda: tf.data.Dataset.from_tensors({"n": 1}), snapshot_every=2).element(0)],
    ]
    for source in sources:
        hidden.clear()
        next(iter(source()))
        assert ([], "GPU") in hidden


def test_a_process_that_has_used_tensorflow_before_continues(monkeypatch):
    def refuses(devices, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", refuses)
    assert tensorflow() is tf


def test_what_can_be_wrong_with_examples(tmp_path):
    path = write(tmp_path / "a.tfrecord", *(example(text=[b"some text"]) for _ in range(3)))
    with pytest.raises(UsageError, match=r"first example in '.*a.tfrecord' has no column 'txt', only 'text'"):
        read(TfExamples(files=path, column="txt"))
    content = (tmp_path / "a.tfrecord").read_bytes()
    for damaged in (content[:-1], content[: len(content) * 2 // 3 + 5], content[:-20] + b"?" + content[-19:]):
        (tmp_path / "a.tfrecord").write_bytes(damaged)
        with pytest.raises(UsageError, match=r"a.tfrecord' is cut off or damaged after record 2"):
            read(TfExamples(files=path))
    (tmp_path / "a.tfrecord.gz").write_bytes(gzip.compress(content)[:-9])
    with pytest.raises(UsageError, match=r"a.tfrecord.gz' is damaged or cut off"):
        read(TfExamples(files=f"{path}.gz"))
    (tmp_path / "a.tfrecord").write_bytes(b"no records at all, but text")
    with pytest.raises(UsageError, match=r"damaged after record 0"):
        read(TfExamples(files=path))
    (tmp_path / "a.tfrecord").write_bytes(b"")
    with pytest.raises(UsageError, match=r"a.tfrecord' is empty"):
        read(TfExamples(files=path))
    write(tmp_path / "a.tfrecord", b"no example")
    with pytest.raises(UsageError, match=r"Record 1 of '.*a.tfrecord' is not a tf.train.Example"):
        read(TfExamples(files=path))
    part = TfExamples(files=path).parts(None)[0]
    (tmp_path / "a.tfrecord").unlink()
    with pytest.raises(UsageError, match=r"file '.*a.tfrecord' does not exist"):
        list(part.read())
