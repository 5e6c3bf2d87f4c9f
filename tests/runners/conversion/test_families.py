"""Models of Hugging Face's families compute here what they compute in transformers, and go back unchanged."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file

from runners.conversion.name_maps import name_map
from runners.conversion.renaming import Layout, slice_of
from tasks.batch import Batch
from tasks.decoding.generation import generate
from tasks.decoding.prompts import pad_prompts
from tasks.decoding.sampler import Sampler
from tests.support.references.foreign import variables_in
from tests.support.references.hugging_face import (
    MODELS,
    arrays_in,
    bring_in,
    logits_in,
    made,
    send_out,
    tokens_of,
)

torch = pytest.importorskip("torch", reason="needs torch, which make test-slow installs")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")
pytestmark = pytest.mark.slow

LENGTHS = (9, 15)  # of two documents in a packed row
LAST_OF_FAMILY = list({kind: name for name, (kind, _) in MODELS.items()}.values())


@pytest.fixture(scope="module", params=MODELS)
def both(request, tmp_path_factory):
    """A model of transformers, the session and variables of its import, and the folders of both directions."""
    folder = tmp_path_factory.mktemp("model")
    model = made(request.param, folder / "theirs")
    assert bring_in(folder / "theirs", folder / "run") == 0
    session, variables = variables_in(folder / "run")
    with jax.default_matmul_precision("highest"):
        yield SimpleNamespace(model=model, session=session, variables=variables, folder=folder)


def assert_near(ours, theirs, tolerance=1e-4):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def test_logits_of_full_and_packed_rows(both):
    tokens = tokens_of()
    run = jax.jit(both.session.task.model.apply, static_argnames="method")
    features, _ = run(both.variables, tokens)
    assert_near(run(both.variables, features, method="logits"), logits_in(both.model, tokens))
    ids = np.repeat([1, 2], LENGTHS)[None].astype(np.int32)
    positions = np.concatenate([np.arange(length) for length in LENGTHS])[None].astype(np.int32)
    features, _ = run(both.variables, tokens[:1], None, ids, positions)
    apart = [logits_in(both.model, part) for part in np.split(tokens[:1], [LENGTHS[0]], axis=1)]
    assert_near(run(both.variables, features, method="logits"), np.concatenate(apart, axis=1))


def test_greedy_tokens_after_prompts_of_different_lengths(both):
    prompts = [tokens_of()[0, :5].tolist(), tokens_of()[1, :11].tolist()]
    tokens, real = pad_prompts(prompts)
    greedy = {"new_tokens": 64, "sampler": Sampler(temperature=0.0)}
    ours, _ = generate(both.session.task, both.variables, tokens, real, jax.random.key(0), **greedy)
    batch = {"input_ids": torch.from_numpy(tokens).long(), "attention_mask": torch.from_numpy(real).long()}
    with torch.no_grad():
        theirs = both.model.generate(**batch, max_new_tokens=64, min_new_tokens=64, do_sample=False, pad_token_id=0)
    np.testing.assert_array_equal(ours, theirs[:, tokens.shape[1] :])


def test_exports_are_the_imported_files_and_load_in_transformers(both):
    theirs, ours = both.folder / "theirs", both.folder / "ours"
    assert send_out(both.folder / "run", ours, "--shard_gb=1e-5") == 0
    assert (ours / "model.safetensors.index.json").exists()
    assert_same_arrays(arrays_in(ours), arrays_in(theirs))
    attention = both.model.config._attn_implementation  # another one rounds otherwise
    loaded = transformers.AutoModelForCausalLM.from_pretrained(ours, attn_implementation=attention)
    assert type(loaded) is type(both.model)
    assert loaded.dtype == torch.float32
    assert_near(logits_in(loaded.eval(), tokens_of()), logits_in(both.model, tokens_of()), 1e-6)


def assert_same_arrays(ours, theirs):
    assert sorted(ours) == sorted(theirs)
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype
        np.testing.assert_array_equal(ours[key].view(np.uint8), value.view(np.uint8), err_msg=key)


@pytest.mark.parametrize("name", LAST_OF_FAMILY)
def test_gradients_of_the_loss(name, tmp_path):
    """Gradients of the mean cross-entropy, compared under the keys of transformers."""
    model = made(name, tmp_path / "theirs")
    assert bring_in(tmp_path / "theirs", tmp_path / "run") == 0
    session, variables = variables_in(tmp_path / "run")
    tokens = tokens_of(2, 25)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    batch = Batch(inputs, targets, np.ones(targets.shape, np.float32))

    def loss(variables):
        _, output = session.task.loss(variables, batch)
        return output.metrics.loss / output.normalizer  # without the loss that balances experts

    with jax.default_matmul_precision("highest"):
        gradient = traverse_util.flatten_dict(jax.jit(jax.grad(loss))(variables), sep="/")
    layout = Layout(name_map(model.config.model_type, []), session.task.weight_table())
    ours = {key: tensor.read() for key, tensor in layout.to_theirs(slice_of(gradient)).items()}
    logits = model(torch.from_numpy(inputs).long()).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).long().flatten()).backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.grad)
    model.save_pretrained(tmp_path / "gradients")
    theirs = load_file(tmp_path / "gradients" / "model.safetensors")
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        assert_near(ours[key], value, 1e-3)
