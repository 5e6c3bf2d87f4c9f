"""The site on object stores."""

import pytest

from layers.errors import UsageError
from registry.site.records import record
from registry.site.write import require_own, write_site
from tasks.storage.files import place
from tests.support import stores

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_site_is_written_twice_and_shrinks(scheme):
    tiny, zero = record("tiny.StdlibTiny"), record("zero.ZeroTestStage2")
    with stores.standing(scheme) as bucket:
        folder = place(f"{bucket}/site")
        require_own(folder)
        written = write_site([tiny, zero], folder)
        assert (folder / "experiments" / "zero.ZeroTestStage2.html").exists()
        assert (folder / "assets" / "plotly.min.js").exists()
        assert written.files > 10
        write_site([tiny], folder)
        assert not (folder / "experiments" / "zero.ZeroTestStage2.html").exists()
        assert "tiny.StdlibTiny" in (folder / "index.html").read_text()
        require_own(folder)
        (folder / "data" / "files.json").unlink()
        with pytest.raises(UsageError, match="is not empty and not a site of the registry"):
            require_own(folder)
