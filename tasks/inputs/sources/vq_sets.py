"""The data sets of Transformer-VQ: enwik8, PG-19 and ImageNet64, byte by byte."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from layers.errors import UsageError
from tasks.inputs.corpus import ByteText, TextFile, check_split
from tasks.inputs.tfds_tokens import TfdsTokens
from tasks.inputs.tokens import Tokens
from tasks.vocabulary import ByteVocabulary

VOCABULARY = ByteVocabulary(special_tokens=3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Enwik8:
    """The first 100 million bytes of a Wikipedia dump, from its raw file: 90% train, 5% validate, 5% test, in order."""

    path: str | None  # the file named enwik8, as unpacked from enwik8.zip

    def tokens(self, split: str) -> Tokens:
        if self.path is None:
            raise UsageError(
                "enwik8 needs its raw file: --set=DATA_PATH=/where/it/is/enwik8 (http://mattmahoney.net/dc)."
            )
        return _tokens(TextFile(self.path).read(split), VOCABULARY.special_tokens)

    def texts(self, split: str) -> Iterator[str]:
        return ByteText(path=self.path).texts(split)

    def describe(self) -> str:
        return f"enwik8 from '{self.path}'"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pg19:
    """Books of Project Gutenberg from before 1919 (Rae et al. 2020), from TFDS: official splits, an end behind each."""

    path: str | None  # folder of TFDS data sets

    def tokens(self, split: str) -> Tokens:
        def encode(book: dict) -> np.ndarray:
            ids = np.frombuffer(book["book_text"], np.uint8).astype(np.uint16) + VOCABULARY.special_tokens
            return np.append(ids, np.uint16(VOCABULARY.stop_id or 0))

        return _tokens(TfdsTokens("pg19", self.path, "bytes").read(split, check_split(split), encode, np.uint16), 0)

    def describe(self) -> str:
        return "PG-19 from TFDS"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageNet64:
    """Pixels of 64 x 64 images in raster order, red, green, blue: 12,288 tokens an image, from TFDS.

    The first 1,200,000 images of the official training split train, the rest of it validates, and the official
    validation split tests.
    """

    path: str | None  # folder of TFDS data sets
    train_images: int = 1_200_000

    def tokens(self, split: str) -> Tokens:
        check_split(split)
        n = self.train_images
        where = {"train": f"train[:{n}]", "validation": f"train[{n}:]", "test": "validation"}[split]
        encode = lambda example: np.asarray(example["image"], np.uint8).reshape(-1)
        ids = TfdsTokens("imagenet_resized/64x64", self.path, "pixels").read(split, where, encode, np.uint8)
        return _tokens(ids, VOCABULARY.special_tokens)

    def describe(self) -> str:
        return "ImageNet64 from TFDS"


def _tokens(ids: np.ndarray, offset: int) -> Tokens:
    return Tokens([ids], stop_id=VOCABULARY.stop_id, start_id=VOCABULARY.start_id, offset=offset)
