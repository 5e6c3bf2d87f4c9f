import dataclasses
import json
import sys

import jax
import pytest

from benchmarks import accelerator, decoding, loop, memory, tables, training, vq
from benchmarks.implementations import plain_jax, products, vortaro
from benchmarks.implementations.alternation import Implementation, workers
from benchmarks.implementations.work import SIZES
from layers.attention.implementations import choose


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page with marks for every table, in the place of the docs."""
    names = [
        "training-tiny",
        "training-tiny-Llama",
        "decoding",
        "decoding-llama",
        "cross-entropy",
        "loop",
        "vq-flat",
        "vq-sampling",
    ]
    file = tmp_path / "benchmarks.md"
    file.write_text("before\n" + "".join(f"<!-- {n} -->\nold\n<!-- end of {n} -->\nbetween\n" for n in names))
    (tmp_path / "measurements").mkdir()
    monkeypatch.setattr(tables, "DOCS", tmp_path)
    monkeypatch.setattr(tables, "PAGE", file)
    monkeypatch.setattr(accelerator, "measured_peak", lambda *_: 1e9)
    monkeypatch.setattr(products, "SIZE", 64)
    return file


def call(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    return module.main()


def lines_of(page, name):
    return json.loads((page.parent / "measurements" / f"{name}.json").read_text())["lines"]


@pytest.mark.slow
@pytest.mark.parametrize("size", ["tiny", "tiny Llama"])
def test_implementations_have_the_same_losses_and_a_missing_one_is_listed(page, monkeypatch, size):
    ours = [c for c in training.IMPLEMENTATIONS if c.module in ("vortaro", "plain_jax")]
    chosen = [*ours, Implementation("nobody", "no_such_module")]
    monkeypatch.setattr(training, "IMPLEMENTATIONS", chosen)
    assert call(training, monkeypatch, f"--size={size}", "--launches=2", "--rounds=1", "--updates=2", "--publish") == 0
    *measured, missing = lines_of(page, f"training-{size.replace(' ', '-')}")
    assert [line["step of"] for line in measured] == [c.name for c in ours]
    assert len({line["last loss"][:6] for line in measured}) == 1
    assert measured[0]["ratio"] == 1
    assert missing["last loss"] == "missing: No module named 'benchmarks.implementations.no_such_module'"
    text = page.read_text()
    assert "| nobody | - |" in text
    assert text.count("old") == 7, "only its own marks"
    assert text.count("between") == 8


@pytest.mark.parametrize("size", ["tiny", "tiny Llama"])
def test_the_same_weights_decay(tmp_path, size):
    """Losses of a few updates would not differ."""
    file = str(tmp_path / "weights.safetensors")
    vortaro.write_weights(SIZES[size], file)
    ours = sum(row.size for row in vortaro.session_of(SIZES[size], set()).task.weight_table() if row.decay)
    leaves = jax.tree_util.tree_leaves_with_path(plain_jax.load(SIZES[size], file, stacked=True))
    assert ours == sum(leaf.size for path, leaf in leaves if str(path[-1].key).endswith(plain_jax.DECAYED))


@pytest.mark.slow
def test_a_killed_implementation_is_missing(tmp_path):
    arguments = ["train", "--size=tiny", "--weights=none"]
    with workers([Implementation("products", "products")], arguments, tmp_path) as [worker]:
        worker.turn(1)
        assert worker.missing is None
        assert 0 < worker.peak < 2**40
        worker._process.kill()
        worker._process.wait()
        worker.turn(1)
        assert worker.missing is not None


@pytest.mark.slow
def test_losses_that_differ_fail_the_comparison(page, monkeypatch):
    two = [Implementation("ours", "vortaro"), Implementation("other rate", "vortaro", ("LEARNING_RATE=0.1",))]
    monkeypatch.setattr(training, "IMPLEMENTATIONS", two)
    assert call(training, monkeypatch, "--size=tiny", "--launches=1", "--rounds=1", "--updates=1") == 1


def test_the_loop_without_a_cache_draws_the_same_tokens(page, monkeypatch):
    ours = [c for c in decoding.IMPLEMENTATIONS if c.module == "vortaro"]
    monkeypatch.setattr(decoding, "IMPLEMENTATIONS", ours)
    arguments = ["--sizes=tiny", "--rows=1", "--prompt=6", "--new=8", "--rounds=1", "--publish"]
    assert call(decoding, monkeypatch, *arguments) == 0
    cached, uncached = lines_of(page, "decoding")
    assert (cached["same tokens"], uncached["same tokens"]) == ("100.0%", "100.0%")


def test_an_implementation_that_exits_is_missing_with_its_last_output(tmp_path):
    arguments = ["train", "--size=tiny", f"--weights={tmp_path / 'none'}"]
    with workers([Implementation("ours", "plain_jax")], arguments, tmp_path) as [worker]:
        worker.turn(1)
        assert worker.missing is not None
        assert "No such file" in worker.missing


def test_chunks_need_less_memory_than_all_logits(page, monkeypatch):
    arguments = ["--vocabularies", "1024", "--positions=64", "--width=16", "--chunk=8", "--rounds=1", "--publish"]
    assert call(memory, monkeypatch, *arguments) == 0
    whole, pieces, twice = (line["MiB of temporaries"] for line in lines_of(page, "cross-entropy"))
    assert max(pieces, twice) < whole / 2


def test_the_loop_compared_with_its_bare_update(page, monkeypatch):
    assert call(loop, monkeypatch, "--rounds=1", "--steps=5", "--publish") == 0
    one, median = lines_of(page, "loop")
    assert median["ratio"] == one["ratio"] == pytest.approx(one["runner"] / one["bare"])


def test_temporaries_and_state_of_vq_do_not_grow_with_the_past(page, monkeypatch):
    assert call(vq, monkeypatch, "flat", "--lengths", "1024", "2048", "--rounds=1", "--publish") == 0
    short, long = (line["KiB/token, VQ"] for line in lines_of(page, "vq-flat"))
    assert long < short
    arguments = ["sampling", "--past", "512", "1024", "--new_tokens=4", "--rounds=1", "--publish"]
    assert call(vq, monkeypatch, *arguments) == 0
    first, second = lines_of(page, "vq-sampling")
    assert first["MiB of state"] == second["MiB of state"] > 0


def test_the_published_tables_are_their_figures():
    page = tables.PAGE.read_text()
    figures = {file: json.loads(file.read_text()) for file in (tables.DOCS / "measurements").glob("*.json")}
    published = {file: facts for file, facts in figures.items() if "machine" in facts}  # others: sweeps
    assert published
    for file, facts in published.items():
        lines = facts.pop("lines")
        text = f"<!-- {file.stem} -->\n{tables.as_markdown(lines, facts)}\n<!-- end of {file.stem} -->"
        assert text in page, file.name


def test_flops_of_gpt2_by_hand():
    size = SIZES["124M"]
    assert training.flops_of(size) == 6 * (12 * 7_077_888 + 50_257 * 768) + 6 * 12 * 768 * 512
    layer = 2 * 768 * 768 + 2 * 768 * 256 + 3 * 768 * 2400
    assert SIZES["Llama 124M"].weights_in_products == 12 * layer + 50_257 * 768


@pytest.mark.slow
def test_all_figures_of_an_accelerator_in_one_call(page, monkeypatch, capsys):
    assert call(accelerator, monkeypatch, "--tiny", "--seconds=600") == 0
    output = capsys.readouterr().out
    assert accelerator.FAILED not in output
    assert "not measured" not in output
    assert call(accelerator, monkeypatch, "--publish") == 2, "no figures of a CPU"
    assert call(accelerator, monkeypatch, "--tiny", "--seconds=0") == 0
    assert capsys.readouterr().out == ""


def test_on_a_gpu_attention_is_flash_or_an_alarm(monkeypatch):
    """What the script measures goes cuDNN's way; a step without it, as a CPU's is, raises the alarm there."""
    chosen = []

    def dense(*arguments):
        decision = choose(*arguments)
        if decision.layer:
            chosen.append(decision.implementation)
        return dataclasses.replace(decision, implementation="dense")  # this machine has no cuDNN

    session = accelerator.dense(accelerator.TINY[0], 128, 256)
    monkeypatch.setattr("layers.attention.softmax.choose", dense)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr("layers.attention.implementations.target_platform", lambda: "gpu")
    _, more = accelerator.update_seconds(session, 1)
    assert set(chosen) == {"cudnn"}
    assert more["note"] == accelerator.ALARM


def test_a_line_that_fails_costs_no_other(page, capsys):
    tables = accelerator.Tables(60, {"machine": "this one"}, publish=True)
    fails = lambda: (_ for _ in ()).throw(RuntimeError("no cuDNN\nand more"))
    tables.fill(
        "decoding", [("good", lambda: {"tokens/s": 3.0}), ("bad", fails), ("better", lambda: {"tokens/s": 4.0})]
    )
    assert not tables.sound
    assert [line.get("tokens/s") for line in lines_of(page, "decoding")] == [3.0, None, 4.0]
    assert lines_of(page, "decoding")[1]["note"] == "failed: RuntimeError no cuDNN"


@pytest.mark.slow
def test_a_llama_of_transformers_draws_the_same_tokens(page, monkeypatch):
    pytest.importorskip("torch", reason="needs torch: pip install -e '.[torch]'")
    arguments = ["--sizes", "tiny Llama", "--rows=2", "--prompt=6", "--new=8", "--rounds=1", "--publish"]
    assert call(decoding, monkeypatch, *arguments) == 0
    lines = lines_of(page, "decoding-llama")
    assert {line["decoder"]: line["same tokens"] for line in lines if line["decoder"] != "Vortaro, no cache"} == {
        "Vortaro": "100.0%",
        "transformers, generate": "100.0%",
    }
