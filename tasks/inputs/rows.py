"""Rows cut from one long stream of token ids: enwik8, PG-19 and ImageNet64 as Transformer-VQ reads them."""

import dataclasses
import functools
from typing import ClassVar, Protocol

import numpy as np

from layers.errors import UsageError
from tasks.batch import Batch
from tasks.inputs.corpus import TextFile, check_split
from tasks.inputs.indexed import IndexedInput, Shard, generator
from tasks.inputs.tfds_tokens import TfdsTokens
from tasks.vocabulary import ByteVocabulary

VOCABULARY = ByteVocabulary(special_tokens=3)


class TokenStream(Protocol):
    """A data set as one array of token ids per split."""

    def read(self, split: str) -> np.ndarray:
        """The ids of a split before `offset` is added, memory-mapped."""
        ...

    @property
    def offset(self) -> int: ...

    def describe(self) -> str: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Enwik8:
    """The first 100 million bytes of a Wikipedia dump, from its raw file: 90% train, 5% validate, 5% test, in order."""

    path: str | None  # the file named enwik8, as unpacked from enwik8.zip
    offset: ClassVar[int] = VOCABULARY.special_tokens

    def read(self, split: str) -> np.ndarray:
        if self.path is None:
            raise UsageError(
                "enwik8 needs its raw file: --set=DATA_PATH=/where/it/is/enwik8 (http://mattmahoney.net/dc)."
            )
        return TextFile(self.path, (0.9, 0.05, 0.05)).read(split)

    def describe(self) -> str:
        return f"enwik8 from '{self.path}'"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pg19:
    """Books of Project Gutenberg from before 1919 (Rae et al. 2020), from TFDS: official splits, an end behind each."""

    path: str | None  # folder of TFDS data sets
    offset: ClassVar[int] = 0

    def read(self, split: str) -> np.ndarray:
        def encode(book: dict) -> np.ndarray:
            ids = np.frombuffer(book["book_text"], np.uint8).astype(np.uint16) + VOCABULARY.special_tokens
            return np.append(ids, np.uint16(VOCABULARY.stop_id or 0))

        return TfdsTokens("pg19", self.path, "bytes").read(split, check_split(split), encode, np.uint16)

    def describe(self) -> str:
        return "PG-19 from TFDS"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageNet64:
    """Pixels of 64 x 64 images in raster order, red, green, blue: 12,288 tokens an image, from TFDS.

    The first 1,200,000 images of the official training split train, the rest of it validates, and the official
    validation split tests.
    """

    path: str | None  # folder of TFDS data sets
    offset: ClassVar[int] = VOCABULARY.special_tokens
    train_images: int = 1_200_000

    def read(self, split: str) -> np.ndarray:
        check_split(split)
        n = self.train_images
        where = {"train": f"train[:{n}]", "validation": f"train[{n}:]", "test": "validation"}[split]
        encode = lambda example: np.asarray(example["image"], np.uint8).reshape(-1)
        return TfdsTokens("imagenet_resized/64x64", self.path, "pixels").read(split, where, encode, np.uint8)

    def describe(self) -> str:
        return "ImageNet64 from TFDS"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsInput(IndexedInput):
    """Rows of `seq_len` tokens to be predicted, each starting afresh: the first is predicted from the end token.

    Shuffled, it never ends, visits every whole row once an epoch in an order that follows from `seed` and the epoch's
    number, and leaves out what is left at the end. Not shuffled, it is one pass in order; what is left is a row with
    padding of weight 0.
    """

    source: TokenStream
    split: str = "train"  # train, validation or test
    shuffle: bool = True
    seed: int = 0
    max_rows: int | None = None  # without shuffling: take so many rows, evenly spaced over the split; None is all

    @functools.cached_property
    def data(self) -> np.ndarray:
        """The split's ids, before the source's offset is added.

        Raises:
          UsageError: there are too few for one row.
        """
        data = self.source.read(self.split)
        need = self.seq_len if self.shuffle else 1
        if len(data) < need:
            where = f"The {self.split} split of {self.source.describe()}"
            raise UsageError(f"{where} has {len(data)} tokens, fewer than the {need} needed.")
        return data

    def describe(self) -> str:
        return f"{self.source.describe()}, {len(self.data):,} tokens in its {self.split} split"

    def require_data(self) -> None:
        _ = self.data

    @property
    def _rows(self) -> int:
        """Rows in one pass, a last short one included where there is no shuffling."""
        whole, rest = divmod(len(self.data), self.seq_len)
        rows = whole if self.shuffle else whole + bool(rest)
        return rows if self.shuffle or self.max_rows is None else min(rows, self.max_rows)

    def num_batches(self) -> int | None:
        return None if self.shuffle else -(-self._rows // self.batch_size)

    def batch(self, index: int, shard: Shard = Shard()) -> Batch:
        numbers = [index * self.batch_size + row for row in shard.rows(self.batch_size)]
        targets = np.zeros((len(numbers), self.seq_len), np.int32)
        weights = np.zeros(targets.shape, np.float32)
        for row, number in enumerate(numbers):
            ids = self._row(number)
            targets[row, : len(ids)] = ids.astype(np.int32) + self.source.offset
            weights[row, : len(ids)] = 1
        start = np.full((len(numbers), 1), VOCABULARY.stop_id, np.int32)
        return Batch(inputs=np.concatenate([start, targets[:, :-1]], axis=1), targets=targets, weights=weights)

    def _row(self, number: int) -> np.ndarray:
        if self.shuffle:
            epoch, place = divmod(number, self._rows)
            start = int(_order(self.seed, epoch, self._rows)[place])
        elif number >= self._rows:
            return self.data[:0]
        else:
            start = number * -(-len(self.data) // self.seq_len) // self._rows
        return self.data[start * self.seq_len : (start + 1) * self.seq_len]


@functools.lru_cache(maxsize=4)
def _order(seed: int, epoch: int, rows: int) -> np.ndarray:
    return generator(seed, epoch).permutation(rows)
