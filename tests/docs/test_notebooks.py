"""The notebooks of the documentation run from their first cell to their last."""

import os

import nbclient
import nbformat
import pytest

from tests.conftest import QUICK_COMPILE, ROOT


@pytest.mark.slow
@pytest.mark.parametrize("notebook", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XLA_FLAGS", QUICK_COMPILE)
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    assert "JAX_PLATFORMS" in os.environ
    cells = nbformat.read(notebook, as_version=4)
    client = nbclient.NotebookClient(cells, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    printed = [out for cell in cells.cells if cell.cell_type == "code" for out in cell.outputs]
    assert any("text/html" in out.get("data", {}) for out in printed)
    assert any("Did you mean 'MODEL_DIM'" in out.get("text", "") for out in printed)
    assert any(out.get("text", "").startswith("def ") for out in printed)
