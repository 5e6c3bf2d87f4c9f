"""The paper's data sets, in the formats that they come in."""

from pathlib import Path

import fsspec
import numpy as np
import pytest

from layers.errors import UsageError
from tasks.inputs.datasets.enwik8 import Enwik8
from tasks.inputs.datasets.imagenet64 import ImageNet64
from tasks.inputs.indexed import Shard
from tasks.inputs.rows import TokensInput
from tasks.inputs.sources.tfds import Tfds
from tasks.inputs.synthetic import SyntheticPackedInput
from tasks.inputs.tbptt_chunks import TbpttInput
from tasks.inputs.token_cache import CachedDocuments
from tasks.vocabularies.vocabulary import ByteVocabulary
from tests.support.references.models import same

EOS = 1


@pytest.fixture
def enwik8(tmp_path):
    path = tmp_path / "enwik8"
    path.write_bytes((np.arange(1000) % 251).astype(np.uint8).tobytes())
    return Enwik8(path=str(path))


def test_enwik8_is_copied_from_a_store_as_it_is(enwik8, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    content = Path(enwik8.path).read_bytes()
    fsspec.filesystem("memory").pipe_file("/enwik8", content)
    remote = Enwik8(path="memory://enwik8")
    assert remote.tokens("train").read(0, 2000).tolist() == enwik8.tokens("train").read(0, 2000).tolist()
    assert list(remote.texts("test")) == list(enwik8.texts("test"))


def pg19(folder):
    books = Tfds(name="pg19", data_dir=folder, column="book_text")
    return CachedDocuments(source=books, vocabulary=ByteVocabulary(special_tokens=3))


def imagenet64(folder, train_images):
    source = ImageNet64(path=folder, train_images=train_images)
    return CachedDocuments(source=source, vocabulary=ByteVocabulary(special_tokens=3), stop_tokens=False)


def rows(source, **fields):
    return TokensInput(**{"rows": "restart", "source": source, "batch_size": 2, "seq_len": 12, **fields})


def test_splits_of_enwik8(enwik8):
    sizes = [len(enwik8.tokens(split)) for split in ("train", "validation", "test")]
    assert sizes == [900, 50, 50], "90, 5 and 5 million of 100 million bytes"
    assert enwik8.tokens("test").read(0, 1)[0] == 950 % 251 + 3


def test_an_epoch_visits_every_complete_row_once_and_restarts_each(enwik8):
    source = rows(enwik8)
    seen = []
    for index in range(75 // 2):  # 75 complete rows of 12 in 900 bytes
        batch = source.batch(index)
        assert np.all(batch.inputs[:, 0] == EOS)
        assert np.array_equal(batch.inputs[:, 1:], batch.targets[:, :-1])
        assert np.all(batch.weights == 1)
        seen += batch.targets[:, 0].tolist()
    starts = [(12 * row) % 251 + 3 for row in range(75)]
    assert len(seen) == 74
    remaining = list(starts)
    for start in seen:
        remaining.remove(start)
    assert source.batch(37).targets[0, 0] == remaining[0], "the last row of the epoch opens the next batch"
    assert not np.array_equal(source.batch(0).targets, rows(enwik8, seed=1).batch(0).targets)


def test_hosts_read_disjoint_rows_of_the_same_batch(enwik8):
    whole = rows(enwik8, batch_size=4).batch(3)
    parts = [rows(enwik8, batch_size=4).batch(3, Shard(i, 2)) for i in range(2)]
    assert np.array_equal(whole.targets, np.concatenate([part.targets for part in parts]))


def test_evaluation_reads_everything_once_in_order_with_padding(enwik8):
    source = rows(enwik8, split="validation", shuffle=False, batch_size=4)
    assert source.num_batches() == 2  # 50 bytes: 4 rows and 2 bytes
    batches = [source.batch(i) for i in range(2)]
    read = np.concatenate([batch.targets[batch.weights > 0] for batch in batches])
    assert np.array_equal(read - 3, np.arange(900, 950) % 251)
    assert batches[1].weights.sum() == 2
    assert np.all(batches[1].targets[batches[1].weights == 0] == 0)
    few = rows(enwik8, split="validation", shuffle=False, max_rows=2, batch_size=2)
    assert few.num_batches() == 1


def test_too_little_text_and_a_missing_path_are_reported(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(b"abc")
    with pytest.raises(UsageError, match=r"fewer than the 12 needed"):
        rows(Enwik8(path=str(path))).require_data()
    with pytest.raises(UsageError, match=r"DATA_PATH"):
        rows(Enwik8(path=None)).require_data()


def test_pieces_continue_with_the_same_rows():
    source = SyntheticPackedInput(batch_size=4, seq_len=12, vocab_size=30)
    pieces = TbpttInput(source=source, batch_size=4, seq_len=4)
    for k in range(9):
        batch, whole = pieces.batch(k), source.batch(k // 3)
        start = 4 * (k % 3)
        assert np.array_equal(batch.inputs, whole.inputs[:, start : start + 4])
        assert np.array_equal(batch.segment_ids, whole.segment_ids[:, start : start + 4])
        assert batch.row_positions.tolist() == [list(range(start, start + 4))] * 4
    assert same(pieces.batch(5, Shard(1, 2)).inputs, pieces.batch(5).inputs[2:])
    with pytest.raises(ValueError, match="must divide rows of 12"):
        TbpttInput(source=source, batch_size=4, seq_len=5)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Small data sets as TFDS writes them: the same names, features and files."""
    tfds = pytest.importorskip("tensorflow_datasets", reason="the extra tfds is not installed")
    folder = tmp_path_factory.mktemp("tfds")

    books = {"train": ["One book.\n", "Another."], "validation": ["Held out."], "test": ["At last."]}

    class Pg19Like(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # other tests have one of that name
        VERSION = tfds.core.Version("0.1.1")
        name = "pg19"

        def _info(self):
            text = {"book_text": tfds.features.Text(), "book_title": tfds.features.Text()}
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(text))

        def _split_generators(self, manager):
            return {split: self._generate_examples(texts) for split, texts in books.items()}

        def _generate_examples(self, texts):
            for i, text in enumerate(texts):
                yield i, {"book_text": text, "book_title": str(i)}

    images = np.random.default_rng(0).integers(0, 256, (7, 64, 64, 3)).astype(np.uint8)

    class ImageNetLike(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("0.1.0")
        BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="64x64"),)
        name = "imagenet_resized"

        def _info(self):
            image = tfds.features.Image(shape=(64, 64, 3), encoding_format="png")
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict({"image": image}))

        def _split_generators(self, manager):
            return {"train": self._generate_examples(images[:5]), "validation": self._generate_examples(images[5:])}

        def _generate_examples(self, images):
            for i, image in enumerate(images):
                yield i, {"image": image}

    for builder in (Pg19Like(data_dir=str(folder)), ImageNetLike(config="64x64", data_dir=str(folder))):
        builder.download_and_prepare()
    return str(folder), books, images


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vortaro"


def test_pg19_is_books_with_an_end_after_each(prepared, cache):
    folder, books, _ = prepared
    for split, texts in books.items():
        ids = pg19(folder).tokens(split).read(0, 10**6)
        pieces = np.split(ids, np.flatnonzero(ids == EOS) + 1)
        found = sorted(bytes((piece[:-1] - 3).astype(np.uint8)).decode() for piece in pieces[:-1])
        assert found == sorted(texts)
    assert len(list(cache.rglob("*.ids"))) == 3
    batch = rows(pg19(folder), seq_len=5).batch(0)
    assert batch.targets.max() < 259
    assert np.all(batch.inputs[:, 0] == EOS)


def test_imagenet_is_pixels_and_its_training_split_is_cut(prepared, cache):
    folder, _, images = prepared
    source = imagenet64(folder, 3)
    parts = {
        split: (source.tokens(split).read(0, 10**6) - 3).astype(np.uint8) for split in ("train", "validation", "test")
    }
    assert [len(part) // 12_288 for part in parts.values()] == [3, 2, 2]
    read = np.concatenate([parts["train"], parts["validation"]]).reshape(-1, 64, 64, 3)
    key = lambda image: image.tobytes()
    assert sorted(map(key, read)) == sorted(map(key, images[:5]))
    assert sorted(map(key, parts["test"].reshape(-1, 64, 64, 3))) == sorted(map(key, images[5:]))
    batch = TokensInput(rows="restart", source=source, batch_size=1, seq_len=12_288).batch(0)
    assert key((batch.targets[0] - 3).astype(np.uint8)) in set(map(key, read))


def test_a_missing_data_set_is_reported(prepared, tmp_path):
    with pytest.raises(UsageError, match=r"TFDS has no data set 'pg19' in .*tfds build pg19"):
        pg19(str(tmp_path)).tokens("train")


def test_without_tfds_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorflow_datasets", None)
    with pytest.raises(UsageError, match=r"vortaro\[tfds\]"):
        pg19(None).tokens("train")
