"""Fake object stores for tests: selected for this process and those it starts."""

import contextlib

import pytest

from testing.object_stores import BUCKET, amazon, google, missing_package


def require(scheme: str) -> None:
    """Skips a test where the packages of a store or of its fake are missing."""
    if package := missing_package(scheme):
        pytest.skip(f"{scheme}:// is tested with the package {package}: pip install -e '.[dev,gcs,s3]'")


@contextlib.contextmanager
def standing(scheme: str):
    """A fake store of a scheme, for this process and those it starts; gives the bucket's name.

    Packages that read settings once, when they are imported, are configured here as well.
    """
    import fsspec.config
    from etils.epath import backend

    from tasks.storage import files

    require(scheme)
    with {"gs": google, "s3": amazon}[scheme]() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        fsspec.config.set_conf_env(fsspec.config.conf)
        yield f"{scheme}://{BUCKET}"
        # Caches of this store's address.
        fsspec.get_filesystem_class(scheme).clear_instance_cache()
        backend.fsspec_backend._get_filesystem.cache_clear()
        files._let_in.cache_clear()
