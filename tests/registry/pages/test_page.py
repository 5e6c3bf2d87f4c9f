"""The frame of pages: escaping, data in scripts, assets."""

import json
import re
from html.parser import HTMLParser

import pytest

from registry.pages.page import cards, listed_names, page, script_data, script_json, table, text, write_assets

ATTACK = "</script><script>alert(1)</script>'\"&"


class Scripts(HTMLParser):
    """Contents of the script tags of a page."""

    def __init__(self, source: str):
        super().__init__()
        self.found: list[str] = []
        self.is_script = False
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.is_script = tag == "script"

    def handle_endtag(self, tag):
        self.is_script = False

    def handle_data(self, data):
        if self.is_script:
            self.found.append(data)


def test_all_texts_are_escaped():
    parts = [text(ATTACK), cards([(ATTACK, ATTACK)]), table((ATTACK,), [(ATTACK,)])]
    made = page(ATTACK, parts, links={ATTACK: ATTACK})
    assert "alert(1)" in made
    assert not any("alert" in script for script in Scripts(made).found)
    assert "<script>alert" not in made


def test_data_is_read_back_and_ends_no_script():
    value = {"a": [1, 2.5, None, True], ATTACK: ATTACK, "line": "\u2028 < & >"}
    made = script_data("name", value)
    (found,) = Scripts(made).found
    assert json.loads(found) == value
    assert script_json([float("nan"), float("inf"), (1, 2)]) == "[null,null,[1,2]]"


def test_a_page_refers_to_its_assets_by_relative_paths():
    made = page("Title", [], root="../..", scripts=("assets/plotly.min.js",), styles=("assets/site.css",))
    addresses = re.findall(r'(?:src|href)="([^"]+)"', made)
    assert {"../../assets/style.css", "../../assets/page.js", "../../assets/plotly.min.js"} <= set(addresses)
    assert not any(address.startswith(("http", "//", "/")) for address in addresses)


def test_a_table_aligns_numbers():
    made = table(("name", "bytes"), [("a", 1)], ("bytes",))
    assert '<td class="n">1</td>' in made
    assert '<th scope="col" class="n">bytes</th>' in made


def test_assets_are_written_once(tmp_path):
    assets = write_assets(tmp_path)
    names = {file.name for file in assets.iterdir()}
    assert names >= {"page.js", "plotly.min.js", "style.css", "figures.js", "curves.js"}
    before = {file.name: file.stat().st_mtime_ns for file in assets.iterdir()}
    (assets / "style.css").write_text("changed")
    write_assets(tmp_path)
    after = {file.name: file.stat().st_mtime_ns for file in assets.iterdir()}
    assert {name for name in names if before[name] != after[name]} == {"style.css"}
    assert (assets / "style.css").read_text() != "changed"


@pytest.mark.parametrize("content", [b"{", b"\xff", b"{}", b"[1]", b"[" * 100_000])
def test_a_damaged_list_of_files_names_none(tmp_path, content):
    (tmp_path / "files.json").write_bytes(content)
    assert listed_names(tmp_path / "files.json") == set()
