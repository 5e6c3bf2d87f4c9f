"""What tests of seqio share: one import, one set of files."""

import importlib.util

import pytest


@pytest.fixture(scope="session")
def seqio_tasks(tmp_path_factory):
    """Names of registered tasks (tests.support.seqio_data)."""
    if importlib.util.find_spec("seqio") is None:
        pytest.skip("needs seqio: pip install -e '.[seqio]'")
    from tasks.inputs.seqio.library import libraries

    libraries()
    from tests.support.seqio_data import register

    return register(tmp_path_factory.mktemp("seqio"))
