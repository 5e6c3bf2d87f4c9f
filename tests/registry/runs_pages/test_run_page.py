"""The page of a run: its cards, texts from the run escaped, data in the page or in a script."""

import json
import re

from registry.runs.run import Run
from registry.runs_pages.run_page import card_pairs, run_page, samples_of
from tests.support.runs_with_curves import metrics, run_folder

SCRIPT = "<script>window.attacked = 1</script>"


def made(folder, **more):
    run = Run(folder)
    return run_page(run.record, run.lines, samples_of(folder), **more)


def test_the_page_has_figures_samples_knobs_weights_and_config(tmp_path):
    page = made(run_folder(tmp_path / "a", sample="def f(x):"))
    assert re.findall(r'data-metric="(\w+)"', page)[:3] == ["loss", "bits_per_byte", "learning_rate"]
    for text in ("Latest sample", "def f(x):", "ffn_in_mf", "MODEL_DIM", "task.optimizer", "Reported by layers"):
        assert text in page
    assert 'src="./assets/plotly.min.js"' in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    data = json.loads(re.search(r'<script type="application/json" id="curves">(.*?)</script>', page)[1])
    assert len(data["series"]["loss"]["train"][0]) == 60


def test_a_run_that_has_stopped_at_a_value_that_is_not_finite(tmp_path):
    folder = run_folder(tmp_path / "a")
    write = lambda **record: (folder / "non_finite.json").write_text(json.dumps(record))
    for wrong in ({"step": 10**6}, {"step": "many", "cause": "a"}, {"step": 1, "cause": "of an earlier start"}):
        write(**wrong)
        assert Run(folder).non_finite == ""
    write(step=10**6, cause=f"Step 1000000 is not finite: {SCRIPT}")
    page = made(folder, non_finite=Run(folder).non_finite)
    assert "<strong>Step 1000000 is not finite: &lt;script&gt;" in page
    assert SCRIPT not in page


def test_data_can_be_in_a_script(tmp_path):
    page = made(run_folder(tmp_path / "a"), title="a", root="..", source="a.js", state="running")
    assert 'id="curves"' not in page
    assert '<script defer src="../runs/a.js">' in page
    assert 'data-source="a.js"' in page
    assert "running" in page


def test_texts_from_the_run_are_escaped(tmp_path):
    folder = run_folder(tmp_path / "a", sample=SCRIPT)
    record = json.loads((folder / "experiment.json").read_text())
    record |= {"doc": f"Doc {SCRIPT}", "overrides": [f"NAME={SCRIPT}"], "experiment": f"a.{SCRIPT}"}
    record["knobs"]["MODEL_DIM"] = {"value": SCRIPT, "owner": SCRIPT}
    record["config"]["task.x"] = SCRIPT
    record["weights"][0]["path"] = SCRIPT
    line = {"step": 1, "split": "evals", f"{SCRIPT}/acc": 0.5}
    (folder / "experiment.json").write_text(json.dumps(record))
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n" + json.dumps({**line, "step": 2}) + "\n")
    page = made(folder, title=SCRIPT)
    assert SCRIPT not in page
    assert page.count("window.attacked") >= 8, "each is shown as text"


def test_texts_that_have_no_utf8_and_counts_that_are_missing(tmp_path):
    folder = run_folder(tmp_path / "a")
    record = json.loads((folder / "experiment.json").read_text()) | {"doc": "half a pair: \ud800"}
    (folder / "experiment.json").write_text(json.dumps(record))
    lines = [json.loads(line) | {"tokens_seen": None} for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "half a pair: ?" in made(folder).encode().decode()


def test_a_run_without_metrics_has_a_page(tmp_path):
    page = made(run_folder(tmp_path / "a", lines=[]))
    assert "No metrics yet." in page


def test_an_old_or_partial_record_has_a_page(tmp_path):
    folder = run_folder(tmp_path / "a")
    record = json.loads((folder / "experiment.json").read_text())
    kept = {key: record[key] for key in ("experiment", "knobs", "overrides")}
    (folder / "experiment.json").write_text(json.dumps(kept))
    assert "tiny.StdlibTiny" in made(folder)


def test_cards(tmp_path):
    run = Run(run_folder(tmp_path / "a"))
    cards = dict(card_pairs(run.record, run.summary, 30.0, "running"))
    assert (cards["state"], cards["step"], cards["training time"], cards["FLOPs"]) == ("running", "60", "30 s", "6e+04")
    assert cards["tokens seen"] == "15.36 k"
    last = Run(run_folder(tmp_path / "b", lines=metrics(5, flops=False))).summary
    assert "FLOPs" not in dict(card_pairs(run.record, last))


def test_cards_have_the_last_validation_also_if_an_earlier_step_was_measured_later(tmp_path):
    lines = [*metrics(60), {"step": 70, "split": "validation", "loss": 9.0}]
    run = Run(run_folder(tmp_path / "a", lines=[*lines, {"step": 5, "split": "validation", "loss": 8.0}]))
    assert dict(card_pairs(run.record, run.summary))["validation loss"] == "9.000"
    for summary in (run.summary, None):
        assert "<dd>9.000</dd>" in re.sub(r"\s", "", run_page(run.record, run.lines, [], summary=summary))
