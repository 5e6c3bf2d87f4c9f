"""The page of model families is up to date: its generated tables, and the class and messages that it shows."""

import json
import re

import pytest

from layers.errors import UsageError
from registry.tool.foreign_model import write_model
from testing.families_page import PAGE, updated

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date():
    assert updated(TEXT) == TEXT, "Run: python -m testing.families_page"


def test_the_page_shows_the_class_and_messages_of_its_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = re.search(r"json\.dumps\((\{.*?\})\)", TEXT)
    assert found
    content = eval(found[1])
    (tmp_path / "config.json").write_text(json.dumps(content))
    row = write_model("config.json", "my_models.Qwen3Small", tmp_path)
    assert f"{row['name']}: {row['parameters']:,} parameters, from config.json.\n" in TEXT
    assert (tmp_path / "my_models.py").read_text().partition("@register")[2].strip() in TEXT
    for more in ({"hidden_sizes": 1}, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}):
        (tmp_path / "config.json").write_text(json.dumps({**content, **more}))
        with pytest.raises(UsageError) as error:
            write_model("config.json", "my_models.Other", tmp_path)
        assert f"registry: {error.value}\n" in TEXT
