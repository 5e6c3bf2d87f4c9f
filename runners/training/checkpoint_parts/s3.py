"""Checkpoints on s3://: orbax 0.12 supports local folders and gs:// only, while tensorstore supports all three.

Four functions of orbax choose the tensorstore driver of a path and whether a folder can be renamed. They are replaced
by functions that support s3:// too; their results for other paths do not change.
"""

import functools
import os
import pathlib
from typing import Any
from urllib import parse

from layers.errors import UsageError


@functools.cache
def use_s3() -> None:
    """Patches orbax in this process to support s3://.

    Raises:
      UsageError: this version of orbax lacks the functions to patch.
    """
    try:
        from orbax.checkpoint._src.path import gcs_utils
        from orbax.checkpoint._src.serialization import tensorstore_utils

        is_store, key_value = gcs_utils.is_gcs_path, gcs_utils.get_kvstore_for_gcs
        has_driver, normal = tensorstore_utils._use_gcs_driver, tensorstore_utils._normalize_path
    except (ImportError, AttributeError) as error:
        raise UsageError("Checkpoints on s3:// need orbax-checkpoint 0.12. Install with constraints.txt.") from error

    def on_store(path: pathlib.PurePosixPath) -> bool:
        return path.as_posix().startswith("s3://") or is_store(path)

    def store_of(path: str) -> dict[str, Any]:
        return s3_store(path) if path.startswith("s3://") else key_value(path)

    gcs_utils.is_gcs_path = on_store
    gcs_utils.get_kvstore_for_gcs = store_of
    tensorstore_utils._use_gcs_driver = lambda folder: folder.startswith("s3://") or has_driver(folder)
    tensorstore_utils._normalize_path = lambda path: normal(path).replace("s3:/", "s3://")


def s3_store(path: str) -> dict[str, Any]:
    """Returns the tensorstore spec of a path on S3, with the settings that AWS tools read from the environment."""
    url, given = parse.urlparse(path), os.environ.get
    spec: dict[str, Any] = {"driver": "s3", "bucket": url.netloc, "path": url.path.removeprefix("/")}
    if endpoint := given("AWS_ENDPOINT_URL_S3") or given("AWS_ENDPOINT_URL"):
        spec["endpoint"] = endpoint
    if region := given("AWS_REGION") or given("AWS_DEFAULT_REGION"):
        spec["aws_region"] = region
    if given("AWS_ACCESS_KEY_ID"):
        spec["aws_credentials"] = {"type": "environment"}
    return spec
