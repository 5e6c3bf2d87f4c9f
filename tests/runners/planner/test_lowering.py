"""Updates of full size lowered for TPUs and GPUs; tests/registry/test_entries.py lowers those of all entries."""

import jax
import jax.numpy as jnp
import pytest

from layers.embedding import Embedding
from layers.errors import UsageError
from registry.checks import check
from registry.resolve import resolve
from runners.planner.lowering import check_lowering, lower


def test_each_platform_gets_its_own_attention():
    entry = resolve("llama.Llama3_8B")
    built = check(entry)
    texts = {platform: lower(entry, built, platform).as_text() for platform in ("tpu", "cuda")}
    assert {platform: "fmha" in text for platform, text in texts.items()} == {"tpu": False, "cuda": True}


def test_an_operation_that_a_platform_lacks_is_an_error(monkeypatch):
    original = Embedding.attend

    def attend(self, x):
        values = jnp.linalg.eigvals(jnp.eye(2))  # not on TPUs
        return original(self, x) + jax.lax.stop_gradient(values.real.sum())

    monkeypatch.setattr(Embedding, "attend", attend)
    entry = resolve("CharTiny")
    with pytest.raises(
        UsageError, match=r"update of tiny.CharTiny cannot be lowered for tpu: NotImplementedError: .*eig"
    ):
        check_lowering(entry, check(entry))


def test_a_mesh_replaces_the_declared_one():
    entry = resolve("CharTiny")
    text = lower(entry, check(entry), "tpu", {"data": 4, "model": 2}).as_text()
    assert "num_partitions = 8" in text
