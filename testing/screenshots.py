"""Pictures of the site for the README: `python -m testing.screenshots` writes docs/figures/site_*.png with Chromium."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from layers.errors import UsageError

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
ENTRY = "gshard.DenseLm128B16x16"  # on 512 devices
WIDTH, HEIGHT = 1200, 760  # pixels


@contextlib.contextmanager
def opened_page(height: int) -> Iterator[Page]:
    """Yields an empty light page of Chromium, WIDTH x `height` pixels.

    Raises:
      UsageError: Chromium is missing.
    """
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        raise UsageError("Chromium is missing. Install your distribution's chromium.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="light")
        browser.close()


def main() -> None:
    """Writes the site of the complete registry into a temporary folder, and pictures of its index and of an entry.

    Raises:
      UsageError: Chromium is missing.
    """
    with tempfile.TemporaryDirectory() as folder, opened_page(HEIGHT) as page:
        subprocess.run([sys.executable, "-m", "registry", "site", f"--out={folder}"], check=True)
        page.goto(f"{Path(folder).as_uri()}/index.html")
        page.locator("#query").fill("mixer=vq")
        page.get_by_role("button", name="Parameters").click()
        page.locator("#query").focus()
        page.screenshot(path=FIGURES / "site_index.png")
        page.goto(f"{Path(folder).as_uri()}/experiments/{ENTRY}.html")
        _show_slices(page)
        page.screenshot(path=FIGURES / "site_weights.png")


def _show_slices(page: Page) -> None:
    """Chooses a weight that several devices share, points at a device, and scrolls to the picture of slices."""
    page.locator("#weight").select_option(label="embedding/embedding_vm")
    page.locator("#devices-205").hover()
    page.locator("#weights").evaluate("(element) => element.scrollIntoView()")


if __name__ == "__main__":
    main()
