"""Data sets of the `datasets` library: from files, folders, its own form on disk, with and without splits."""

import json
import pickle
import re
import shlex
import sys

import numpy as np
import pytest

from layers.errors import UsageError
from registry.build import build, to_json
from registry.records.diff import diff
from registry.records.snapshot import flat_config, snapshot
from registry.resolve import resolve
from tasks.inputs.sources.documents import Skipped
from tasks.inputs.sources.huggingface import HuggingFace

datasets = pytest.importorskip("datasets", reason="needs datasets: pip install -e '.[hf]'")


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


def read(source, split=None):
    """All documents, through a pickle: parts are read by other processes."""
    return [document for part in source.parts(split) for document in pickle.loads(pickle.dumps(part)).read()]


def jsonl(path, texts):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"text": text, "n": 1}) + "\n" for text in texts))
    return str(path)


def test_a_data_set_saved_with_splits(tmp_path):
    rows = lambda *texts: datasets.Dataset.from_dict({"text": list(texts)})
    saved = datasets.DatasetDict({"train": rows("a", "", "ç"), "dev": rows("d"), "test": rows("e"), "extra": rows("f")})
    saved.save_to_disk(tmp_path / "saved")
    source = HuggingFace(dataset=str(tmp_path / "saved"))
    assert source.has_splits
    assert read(source, "train") == ["a", Skipped("empty"), "ç"]
    assert read(source, "validation") == ["d"]
    assert read(source, "test") == ["e"]
    before = source.parts("test")[0].version
    datasets.DatasetDict({**saved, "test": rows("E")}).save_to_disk(tmp_path / "again")
    assert HuggingFace(dataset=str(tmp_path / "again")).parts("test")[0].version != before
    swapped = HuggingFace(dataset=source.dataset, splits={"train": "extra", "test": "train"})
    assert read(swapped, "train") == ["f"]
    with pytest.raises(UsageError, match=r"has no validation split, only 'train', 'dev', 'test', 'extra'"):
        swapped.parts("validation")
    only = HuggingFace(dataset=source.dataset, splits={"train": "extra"})
    assert not only.has_splits
    assert read(only) == ["f"]
    with pytest.raises(UsageError, match=r"no split 'exta'. Did you mean 'extra'"):
        HuggingFace(dataset=source.dataset, splits={"train": "exta"}).parts(None)
    with pytest.raises(UsageError, match=r"splits of its own"):
        source.parts(None)
    with pytest.raises(UsageError, match=r"Unknown split 'dev'"):
        source.parts("dev")


def test_rows_in_parts_and_a_version_that_goes_with_the_rows_and_the_column(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.inputs.sources.huggingface.ROWS_PER_PART", 1500)
    texts = [f"document {i}" for i in range(3100)]
    path = jsonl(tmp_path / "a.jsonl", texts)
    source = HuggingFace(dataset=path)
    assert not source.has_splits
    parts = source.parts(None)
    assert [part.name for part in parts] == [f"{path} train[{r}]" for r in ("0:1500", "1500:3000", "3000:3100")]
    assert read(source) == texts
    assert len({part.version for part in parts}) == 1
    assert [part.version for part in HuggingFace(dataset=path).parts(None)] == [part.version for part in parts]
    assert HuggingFace(dataset=path, column="n").parts(None)[0].version != parts[0].version
    assert len(pickle.dumps(parts[0])) < 20_000, "rows stay in their file"
    jsonl(tmp_path / "a.jsonl", texts[::-1])
    assert HuggingFace(dataset=path).parts(None)[0].version != parts[0].version
    with pytest.raises(UsageError, match=r"no splits of its own"):
        source.parts("train")


def test_other_forms_of_files(tmp_path):
    columns = {"ids": [[1, 2], [], [70000]], "text": ["a", "b", None], "odd": [{"a": 1}] * 3, "rows": [[[1]], None, []]}
    table = datasets.Dataset.from_dict(columns)
    table.to_parquet(tmp_path / "b.parquet")
    path = str(tmp_path / "b.parquet")
    assert read(HuggingFace(dataset=path)) == ["a", "b", Skipped("null")]
    ids = read(HuggingFace(dataset=path, column="ids"))
    assert isinstance(ids[0], np.ndarray)
    assert (ids[0].tolist(), ids[1], ids[2].tolist()) == ([1, 2], Skipped("empty"), [70000])
    neither = Skipped("neither text nor a row of token ids")
    assert read(HuggingFace(dataset=path, column="odd")) == [neither] * 3
    assert read(HuggingFace(dataset=path, column="rows")) == [neither, Skipped("null"), Skipped("empty")]
    (tmp_path / "c.csv").write_text('text,n\n"x, y",1\nz,2\n')
    assert read(HuggingFace(dataset=str(tmp_path / "c.csv"))) == ["x, y", "z"]
    (tmp_path / "c.tsv").write_text("text\tn\nx, y\t1\n")
    assert read(HuggingFace(dataset=str(tmp_path / "c.tsv"))) == ["x, y"]
    (tmp_path / "d.txt").write_text("one\ntwo\n")
    assert read(HuggingFace(dataset=str(tmp_path / "*.txt"))) == ["one", "two"]
    table.save_to_disk(tmp_path / "arrow")
    assert read(HuggingFace(dataset=str(tmp_path / "arrow"))) == ["a", "b", Skipped("null")]
    assert read(HuggingFace(dataset=str(tmp_path / "arrow" / "*.arrow"))) == ["a", "b", Skipped("null")]


def test_a_folder_with_split_names_in_its_files_and_one_with_configurations(tmp_path):
    folder = tmp_path / "named"
    jsonl(folder / "train.jsonl", ["t"])
    jsonl(folder / "validation.jsonl", ["v"])
    source = HuggingFace(dataset=str(folder))
    assert source.has_splits
    assert read(source, "validation") == ["v"]
    with pytest.raises(UsageError, match=r"has no test split, only 'train', 'validation'"):
        source.parts("test")
    several = tmp_path / "several"
    for language in ("english", "german"):
        jsonl(several / f"{language}.jsonl", [language])
    entries = "".join(f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in ("english", "german"))
    (several / "README.md").write_text(f"---\nconfigs:\n{entries}---\n")
    assert read(HuggingFace(dataset=str(several), config="german")) == ["german"]
    with pytest.raises(UsageError, match=r"no configuration 'germn'. Did you mean 'german'"):
        HuggingFace(dataset=str(several), config="germn").parts(None)
    with pytest.raises(UsageError, match=r"several configurations, and none is named. .*'english', 'german'"):
        HuggingFace(dataset=str(several)).parts(None)


def test_the_error_of_a_data_set_without_validation_has_the_knob_to_set(tmp_path, monkeypatch):
    """The override that the error message suggests is valid without a change."""
    for split in ("train", "test"):
        jsonl(tmp_path / "two" / f"{split}.jsonl", [f"{split} {i}" for i in range(3)])
    knobs = ["DATA=huggingface", f"DATASET={tmp_path}/two"]
    source = lambda *sets: build(resolve("gpt.GptStdlib", [*knobs, *sets]).documents("huggingface", None), "source")
    with pytest.raises(UsageError, match=r"has no validation split, only 'train', 'test'. Assign one with") as error:
        source().parts("validation")
    instead, all_of_one = [shlex.split(flag)[0] for flag in re.findall(r"--set='[^']*'", str(error.value))]
    assert instead == '--set=DATA_SPLITS=(("train","train"),("validation","test"),("test","test"))'
    assert all_of_one == '--set=DATA_SPLITS=(("train","train"),)'
    found = source(instead.removeprefix("--set="))
    texts = {split: read(found, split) for split in ("train", "validation", "test")}
    assert texts["train"] == [f"train {i}" for i in range(3)]
    assert texts["validation"] == texts["test"] == [f"test {i}" for i in range(3)]
    assert read(source(all_of_one.removeprefix("--set="))) == texts["train"]
    with pytest.raises(UsageError, match=r"no train split in DATA_SPLITS. .*'DATA_SPLITS=\(\(\"train\",\"train\"\),"):
        source('DATA_SPLITS=(("test","test"),)').parts("test")
    with pytest.raises(UsageError, match=r"two splits for 'test', 'test' and 'train'. Choose one"):
        source('DATA_SPLITS=(("test","test"),("test","train"))')
    with pytest.raises(UsageError, match=r"Unknown split 'valid'. Did you mean 'validation'"):
        source('DATA_SPLITS=(("valid","test"),)')


@pytest.mark.parametrize("kind", ["huggingface", "tfds"])
def test_named_splits_are_shown_compared_and_kept(kind):
    """A config that holds a dict."""
    sets = [f"DATA={kind}", "DATASET=x", 'DATA_SPLITS=(("train","train"),("test","held"))']
    plain, named = (resolve("gpt.GptStdlib", chosen) for chosen in (sets[:2], sets))
    assert flat_config(named)["train.input.source.source.splits.test"] == "'held'"
    assert json.loads(to_json(named.Train()))
    rows = diff(snapshot(plain), snapshot(named))["config"]
    assert "train.input.source.source.splits" in [row["path"] for row in rows]


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install 'vortaro\[hf\]'"):
        HuggingFace(dataset="some/thing").parts(None)


def test_what_can_be_wrong(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", ["a"])
    with pytest.raises(UsageError, match=r"no column 'txt', only 'text', 'n'. Did you mean 'text'"):
        HuggingFace(dataset=path, column="txt").parts(None)
    with pytest.raises(UsageError, match=r"names files, which have no configuration or revision"):
        HuggingFace(dataset=path, config="en").parts(None)
    with pytest.raises(UsageError, match=r"'some/thing' is not in the local cache and the hub cannot be reached"):
        HuggingFace(dataset="some/thing").parts(None)
    with pytest.raises(UsageError, match=r"The Hugging Face data set '/no/such/folder' cannot be found"):
        HuggingFace(dataset="/no/such/folder").parts(None)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(UsageError, match=r"cannot be read: Parquet"):
        HuggingFace(dataset=str(tmp_path / "broken.parquet")).parts(None)
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"te')
    with pytest.raises(UsageError, match=r"cannot be read: "):
        HuggingFace(dataset=str(tmp_path / "broken.jsonl")).parts(None)
    with pytest.raises(UsageError, match=r"must all end in one of"):
        HuggingFace(dataset=str(tmp_path / "*")).parts(None)
    with pytest.raises(UsageError, match=r"matches no file"):
        HuggingFace(dataset=str(tmp_path / "*.csv")).parts(None)
    (tmp_path / "none.csv").write_text("text,n\n")
    with pytest.raises(UsageError, match=r"corresponds to no data\."):
        HuggingFace(dataset=str(tmp_path / "none.csv")).parts(None)
