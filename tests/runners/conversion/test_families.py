"""Models of Hugging Face's families compute here what they compute in transformers."""

import jax
import numpy as np
import pytest

from tasks.batch import Batch
from tasks.decoding.generation import generate, pad_prompts
from tasks.decoding.sampler import Sampler
from tests.support.references.foreign import variables_in
from tests.support.references.hugging_face import MODELS, bring_in, logits_in, made, tokens_of

torch = pytest.importorskip("torch", reason="needs torch: pip install -e '.[torch,hf]'")
pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[torch,hf]'")

LENGTHS = (9, 15)  # of two documents in a packed row
ONE_PER_FAMILY = list({kind: name for name, (kind, _) in reversed(MODELS.items())}.values())


@pytest.fixture(scope="module", params=MODELS)
def both(request, tmp_path_factory):
    """A model of transformers, and the session and variables of its import."""
    folder = tmp_path_factory.mktemp("model")
    model = made(request.param, folder / "theirs")
    assert bring_in(folder / "theirs", folder / "run") == 0
    with jax.default_matmul_precision("highest"):
        yield model, *variables_in(folder / "run")


def assert_near(ours, theirs, tolerance=1e-4):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def test_logits_of_full_and_packed_rows(both):
    model, session, variables = both
    tokens = tokens_of()
    run = jax.jit(session.task.model.apply, static_argnames="method")
    features, _ = run(variables, tokens)
    theirs = logits_in(model, tokens)
    assert_near(run(variables, features, method="logits"), theirs)
    ids = np.repeat([1, 2], LENGTHS)[None].astype(np.int32)
    positions = np.concatenate([np.arange(length) for length in LENGTHS])[None].astype(np.int32)
    features, _ = run(variables, tokens[:1], None, ids, positions)
    apart = [logits_in(model, part) for part in np.split(tokens[:1], [LENGTHS[0]], axis=1)]
    assert_near(run(variables, features, method="logits"), np.concatenate(apart, axis=1))


def test_greedy_tokens_after_prompts_of_different_lengths(both):
    model, session, variables = both
    prompts = [tokens_of()[0, :5].tolist(), tokens_of()[1, :11].tolist()]
    tokens, real = pad_prompts(prompts)
    ours, _ = generate(
        session.task, variables, tokens, real, jax.random.key(0), new_tokens=64, sampler=Sampler(temperature=0.0)
    )
    batch = {"input_ids": torch.from_numpy(tokens).long(), "attention_mask": torch.from_numpy(real).long()}
    with torch.no_grad():
        theirs = model.generate(**batch, max_new_tokens=64, min_new_tokens=64, do_sample=False, pad_token_id=0)
    np.testing.assert_array_equal(ours, theirs[:, tokens.shape[1] :])


@pytest.mark.parametrize("name", ONE_PER_FAMILY)
def test_gradients_of_the_loss(name, tmp_path):
    """Gradients of the mean cross-entropy, compared in the names of transformers."""
    from runners.conversion.name_maps import name_map
    from runners.conversion.renaming import Layout, slice_of
    from flax import traverse_util

    model = made(name, tmp_path / "theirs")
    assert bring_in(tmp_path / "theirs", tmp_path / "run") == 0
    session, variables = variables_in(tmp_path / "run")
    tokens = tokens_of(2, 25)
    batch = Batch(tokens[:, :-1], tokens[:, 1:], np.ones((2, 24), np.float32))

    def loss(variables):
        total, output = session.task.loss(variables, batch)
        return output.metrics.loss / output.normalizer

    with jax.default_matmul_precision("highest"):
        gradient = jax.jit(jax.grad(loss))(variables)
    table = session.task.weight_table()
    layout = Layout(name_map(model.config.model_type, []), table)
    flat = traverse_util.flatten_dict(gradient, sep="/")
    ours = {key: tensor.read() for key, tensor in layout.to_theirs(slice_of(flat)).items()}
    model(torch.from_numpy(tokens[:, :-1]).long(), labels=torch.from_numpy(tokens[:, :-1]).long())
    logits = model(torch.from_numpy(tokens[:, :-1]).long()).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(tokens[:, 1:]).long().flatten()).backward()
    theirs = gradients_by_key(model)
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        assert_near(ours[key], value, 1e-3)


def gradients_by_key(model):
    """The gradients of a model of transformers, under the keys of its files."""
    import tempfile

    from safetensors.numpy import load_file

    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.grad)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")
