"""ImageNet64: images as token ids, one per color value."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tasks.inputs.byte_text import check_split
from tasks.inputs.sources.documents import Document, DocumentSource, Part
from tasks.inputs.sources.tfds import prepared
from tasks.quiet_imports import tensorflow_datasets

NAME = "imagenet_resized/64x64"
IMAGES_PER_PART = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageNet64(DocumentSource):
    """Pixels of 64 x 64 images in raster order, red, green, blue: 12,288 tokens per image, from TFDS.

    The train split is the first 1,200,000 images of the official training split, the validation split is the rest of
    it, and the test split is the official validation split.
    """

    path: str | None  # folder of TFDS data sets
    first_id: int = 3  # token of the value 0
    train_images: int = 1_200_000

    @property
    def has_splits(self) -> bool:
        return True

    def parts(self, split: str | None) -> list[Part]:
        builder = prepared(NAME, self.path)
        sizes = {name: info.num_examples for name, info in builder.info.splits.items()}
        train = min(self.train_images, sizes["train"])
        name, first, last = {
            "train": ("train", 0, train),
            "validation": ("train", train, sizes["train"]),
            "test": ("validation", 0, sizes["validation"]),
        }[check_split(split or "train")]
        version = f"{builder.info.full_name} {sizes} {builder.data_path} {self.first_id}"
        ranges = [(start, min(start + IMAGES_PER_PART, last)) for start in range(first, last, IMAGES_PER_PART)]
        return [
            Part(f"{NAME} {name}[{start}:{stop}]", version, functools.partial(self._images, builder, name, start, stop))
            for start, stop in ranges
        ]

    def _images(self, builder: Any, name: str, start: int, stop: int) -> Iterator[Document]:
        tfds = tensorflow_datasets()
        pixels = tfds.decode.PartialDecoding({"image": True})
        rows = tfds.core.ReadInstruction(name, from_=start, to=stop, unit="abs")
        for example in tfds.as_numpy(builder.as_dataset(split=rows, shuffle_files=False, decoders=pixels)):
            yield np.asarray(example["image"], np.uint16).reshape(-1) + np.uint16(self.first_id)

    def describe(self) -> str:
        return "ImageNet64 from TFDS"
