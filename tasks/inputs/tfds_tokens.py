"""Token ids of a TFDS data set, encoded once and kept on disk as one memory-mapped array per split."""

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tasks.inputs.corpus import cache_folder
from tasks.inputs.sources.tfds import prepared


@dataclasses.dataclass(frozen=True)
class TfdsTokens:
    """A data set that TFDS has prepared in `data_dir` (None: TFDS's own default folder)."""

    name: str  # as TFDS calls it
    data_dir: str | None
    encoding: str  # what ids stand for; part of the cache's key

    def read(self, split: str, tfds_split: str, encode: Callable[[Any], np.ndarray], dtype: Any) -> np.ndarray:
        """The ids of all examples of `tfds_split` in TFDS's order, one after the other.

        Built on the first call; a build that is cut off leaves nothing behind.

        Raises:
          UsageError: tensorflow_datasets is not installed, or has no such data set prepared there.
        """
        builder = prepared(self.name, self.data_dir)
        count = builder.info.splits[tfds_split].num_examples
        version = f"{builder.data_path} {builder.info.full_name} {tfds_split} {count} {self.encoding}"
        key = hashlib.sha256(version.encode()).hexdigest()[:12]
        path = cache_folder() / f"{self.name.replace('/', '-')}-{key}.{split}.bin"
        if not path.exists():
            self._build(builder, tfds_split, encode, dtype, path)
        if path.stat().st_size == 0:
            return np.zeros(0, dtype)
        return np.memmap(path, dtype, mode="r")

    def _build(self, builder: Any, tfds_split: str, encode: Any, dtype: Any, path: Path) -> None:
        import tensorflow_datasets as tfds

        print(f"Encoding {self.name} ({tfds_split}) into {path} ...", flush=True)
        examples = builder.as_dataset(split=tfds_split, shuffle_files=False)
        # A folder of its own, which goes away with whatever is in it when the build is cut off.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="building-") as folder:
            part = Path(folder, path.name)
            with part.open("wb") as file:
                for example in tfds.as_numpy(examples):
                    file.write(encode(example).astype(dtype).tobytes())
            os.replace(part, path)
