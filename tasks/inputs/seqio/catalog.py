"""seqio Tasks of well-known TFDS data sets, as bytes: `seqio_cache_tasks --module_import=tasks.inputs.seqio.catalog`.

TFDS must have prepared the data sets in its folder (TFDS_DATA_DIR); `tfds build NAME` prepares one.
"""

from typing import Any

from tasks.inputs.seqio.library import libraries
from tasks.inputs.seqio.registration import tfds_task

CATALOG: dict[str, dict[str, Any]] = {
    "pg19": {"dataset": "pg19", "features": {"targets": "book_text"}},
    "lm1b": {"dataset": "lm1b", "splits": {"train": "train", "validation": "test[:50%]", "test": "test[50%:]"}},
    "wikipedia": {
        "dataset": "wikipedia/20230601.en",
        "splits": {"train": "train[10000:]", "validation": "train[:5000]", "test": "train[5000:10000]"},
    },
    "c4": {"dataset": "c4/en"},
    "imagenet64": {
        "dataset": "imagenet_resized/64x64",
        "splits": {"train": "train[:1200000]", "validation": "train[1200000:]", "test": "validation"},
        "features": {"targets": "image"},
        "content": "pixels",
    },
}


def register_catalog() -> None:
    """Registers each entry as `vortaro_tfds:NAME`, unless a task has that name already; reads no data."""
    seqio, _ = libraries()
    for name, fields in CATALOG.items():
        if f"vortaro_tfds:{name}" not in seqio.TaskRegistry.names():
            tfds_task(name, **fields)


register_catalog()  # the caching tool imports this module for its registrations
