import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers import stack
from layers.errors import UsageError
from registry.resolve import resolve
from runners.session import Session
from tasks.decoding import generation
from tasks.decoding.generation import generate, generate_in_place
from tasks.decoding.prompts import pad_prompts
from tasks.decoding.sampler import Sampler
from tests.support.references.models import task_of, train_losses, variables_of

TASK = task_of()


@pytest.fixture(scope="module")
def variables():
    return train_losses(30, LEARNING_RATE=1e-2)[1].variables


def run(variables, prompts, new_tokens=12, sampler=None, seed=0, stop_ids=()):
    tokens, real = pad_prompts(prompts)
    sampler = sampler or Sampler(temperature=0.0)
    drawn, _ = generate(
        TASK, variables, tokens, real, jax.random.key(seed), new_tokens=new_tokens, sampler=sampler, stop_ids=stop_ids
    )
    return np.asarray(drawn).tolist()


def uncached_argmax(variables, prompt, new_tokens):
    tokens = list(prompt)
    for _ in range(new_tokens):
        features, _ = TASK.model.apply(variables, jnp.array([tokens]))
        logits = TASK.model.apply(variables, features, method="logits")
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("prompt", [[3], list(range(0, 30, 2))])
def test_greedy_equals_uncached_argmax_token_for_token(variables, prompt):
    assert run(variables, [prompt]) == [uncached_argmax(variables, prompt, 12)]


def test_prompts_of_different_lengths_do_not_disturb_each_other(variables):
    prompts = [[3, 4], [1, 3, 5, 7, 9, 11], [9]]
    together = run(variables, prompts)
    assert together == [run(variables, [prompt])[0] for prompt in prompts]


def test_one_compiled_loop_for_any_number_of_tokens():
    tokens, real = pad_prompts([[1, 2]])
    abstract = TASK.weight_table().abstract
    lowered = generate.lower(TASK, abstract, tokens, real, jax.random.key(0), new_tokens=256, sampler=Sampler())
    text = lowered.as_text()
    assert text.count("stablehlo.while") >= 1
    assert len(text) < 500_000, "not unrolled over tokens"


@pytest.mark.parametrize("rows", [1, 3])
def test_a_step_copies_no_cache_and_no_weights(rows):
    """Layers are unstacked; a cache has as many elements per row as the smallest matrix."""
    task = task_of(MODEL_DIM=64, NUM_HEADS=4, NUM_KV_HEADS=4)
    tokens, real = pad_prompts([[1, 2]] * rows)
    abstract = task.weight_table().abstract
    call = {"new_tokens": 62, "sampler": Sampler(temperature=0.0)}
    lowered = generate.lower(task, abstract, tokens, real, jax.random.key(0), **call)
    text = lowered.compile().as_text()
    body = re.findall(r" while\(.*?body=%([\w.\-]+)", text)[-1]
    [steps] = re.findall(rf"^%{re.escape(body)} \(.*?\n}}\n", text, re.MULTILINE | re.DOTALL)
    copied = lambda program: re.findall(r"%(?:\w+_)?(?:copy|transpose)[\w.\-]* = \w+\[([\d,]*)\]", program)
    largest = lambda shapes: max(math.prod(map(int, shape.split(","))) if shape else 1 for shape in shapes)
    assert largest(["", *copied(steps)]) < 64 * 64 <= largest(copied(text)), "the prompt's pass copies"


def test_stop_ends_a_row_and_fills_it(variables):
    free = run(variables, [[1, 3], [2, 3]])
    stop = free[0][3]
    stopped = run(variables, [[1, 3], [2, 3]], stop_ids=(stop,))
    end = free[0].index(stop)
    assert stopped[0] == free[0][: end + 1] + [stop] * (11 - end)
    end = free[1].index(stop) if stop in free[1] else 11
    assert stopped[1][: end + 1] == free[1][: end + 1]


def test_each_stop_id_ends_a_row(variables):
    prompts, sampler = [[1, 3], [2, 3], [9]], Sampler(temperature=1.0)
    free = run(variables, prompts, sampler=sampler)
    first, other = free[0][3], free[1][5]
    unused = next(number for number in range(100) if all(number not in row for row in free))
    stopped = run(variables, prompts, sampler=sampler, stop_ids=(unused, first, other))
    for row, whole in zip(stopped, free, strict=True):
        end = next((i for i, number in enumerate(whole) if number in (first, other)), len(whole) - 1)
        assert row[: end + 1] == whole[: end + 1]
        assert {*row[end + 1 :]} <= {whole[end], unused}


def test_same_seed_same_sample(variables):
    sampler = Sampler(temperature=1.0)
    assert run(variables, [[1]], sampler=sampler) == run(variables, [[1]], sampler=sampler)
    assert run(variables, [[1]] * 4, sampler=sampler) != run(variables, [[1]] * 4, sampler=sampler, seed=1)


LOGITS = jnp.log(jnp.array([[0.5, 0.25, 0.15, 0.1]]))


@pytest.mark.parametrize(
    ("sampler", "count"),
    [
        (Sampler(), 4),
        (Sampler(top_k=2), 2),
        (Sampler(top_k=9), 4),
        (Sampler(top_p=0.5), 1),
        (Sampler(top_p=0.51), 2),
        (Sampler(top_p=0.9), 3),
        (Sampler(top_k=3, top_p=0.8), 2),
        (Sampler(top_p=1e-6), 1),
    ],
)
def test_what_may_be_drawn(sampler, count):
    assert np.isfinite(sampler.keep(LOGITS)).sum() == count
    assert np.isfinite(sampler.keep(LOGITS)[0, :count]).all()


@pytest.mark.parametrize(
    ("sampler", "tokens"),
    [
        # Surprises 0.69, 1.39, 1.90, 2.30 around an entropy of 1.21: nearest is the second token, then the first.
        (Sampler(typical_p=0.2), {1}),
        (Sampler(typical_p=0.26), {0, 1}),
        (Sampler(typical_p=0.76), {0, 1, 2}),
        (Sampler(typical_p=1.0), {0, 1, 2, 3}),
        # exp(-entropy) is 0.2988: thresholds 0.01, 0.164 and 0.2988.
        (Sampler(eta=0.01), {0, 1, 2, 3}),
        (Sampler(eta=0.3), {0, 1}),
        (Sampler(eta=1.0), {0}),
        # Each rule sees what those before have left: of two tokens, 2/3 and 1/3, the second is nearer.
        (Sampler(top_k=2, typical_p=0.3), {0}),
        (Sampler(top_k=3, eta=0.3), {0, 1}),
    ],
)
def test_which_may_be_drawn_by_entropy(sampler, tokens):
    assert set(np.flatnonzero(np.isfinite(sampler.keep(LOGITS)[0])).tolist()) == tokens


def test_eta_keeps_the_likeliest_of_many_alike():
    assert np.isfinite(Sampler(eta=1.0).keep(jnp.zeros((1, 50)))).any()


def test_repetition_penalty_divides_positive_logits_and_multiplies_negative_ones():
    logits, counts = jnp.array([[2.0, 1.9, -1.0, -1.5]]), jnp.array([[1, 0, 3, 0]])
    greedy = Sampler(temperature=0.0, repetition_penalty=2.0)
    assert greedy(logits, jax.random.key(0)).tolist() == [0], "nothing drawn yet"
    assert greedy(logits, jax.random.key(0), counts).tolist() == [1]
    assert greedy(logits[:, 2:], jax.random.key(0), counts[:, 2:]).tolist() == [1], "-1 became -2"


def test_a_repetition_penalty_ends_repetitions(variables):
    free = run(variables, [[1, 3, 5]], new_tokens=24)[0]
    held = run(variables, [[1, 3, 5]], new_tokens=24, sampler=Sampler(temperature=0.0, repetition_penalty=1e6))[0]
    assert len(set(free)) < 24
    assert len(set(held)) > len(set(free))


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(repetition_penalty=1.3, top_k=9)], ids=["plain", "penalty"])
def test_in_pieces_as_at_once(variables, sampler):
    prompts = [[1, 3, 5], [2]]
    whole, memory, drawn = run(variables, prompts, new_tokens=12, sampler=sampler), None, []
    tokens, real = pad_prompts(prompts)
    for size in (5, 4, 3):
        choices = {"new_tokens": size, "sampler": sampler, "capacity": tokens.shape[1] + 12 if memory is None else 15}
        piece, memory = generate(TASK, variables, tokens, real, jax.random.key(0), memory=memory, **choices)
        drawn.append(np.asarray(piece))
        tokens = real = np.zeros((2, 0), np.int32)
    assert np.concatenate(drawn, axis=1).tolist() == whole


def test_in_place_nothing_but_tokens_is_new(variables):
    """Of what a call remembers, no second copy is made."""
    tokens, real = pad_prompts([[1, 3, 5], [2]])
    nothing, choices = np.zeros((2, 0), np.int32), {"new_tokens": 5, "sampler": Sampler(), "capacity": 15}
    _, memory = generate(TASK, variables, tokens, real, jax.random.key(0), **choices)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(memory))
    given = (variables, nothing, nothing, jax.random.key(0))
    program = generate_in_place.lower(TASK, *given, memory=memory, **choices).compile()
    sizes = program.memory_analysis()
    assert sizes.alias_size_in_bytes >= held
    expected, _ = generate(TASK, *given, memory=memory, **choices)
    drawn, _ = program(*given, memory=memory)
    assert drawn.tolist() == expected.tolist()
    assert memory.state.layers.key_bktd.is_deleted()


@pytest.mark.parametrize("positions", ["alibi", "rotary"])
def test_a_window_slides(positions):
    """Beyond the window the cache equals the full pass whose attention has the same window."""
    task = task_of(POSITIONS=positions, ATTENTION_WINDOW=6)
    weights = variables_of(task)
    state = task.init_decode_state(1, 1)
    cache = state.layers
    assert cache.key_bktd.shape[3] == cache.value_bktd.shape[3] == cache.segment_ids_bt.shape[2] == 5, "after layers"
    tokens = jax.random.randint(jax.random.key(1), (1, 40), 0, 32)
    features, _ = task.model.apply(weights, tokens)
    expected = task.model.apply(weights, features, method="logits")
    step = jax.jit(task.decode_step)
    for i in range(40):
        logits, state = step(weights, tokens[:, i : i + 1], state)
        np.testing.assert_allclose(logits, expected[:, i], atol=1e-4)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_window_of_one_has_a_cache_without_slots(rows):
    task = task_of(ATTENTION_WINDOW=1)
    weights, tokens = variables_of(task), jnp.full((rows, 3), 5)
    given = (task, weights, tokens, jnp.ones_like(tokens), jax.random.key(0))
    few, many = (
        generate(*given, new_tokens=number, sampler=Sampler(temperature=0.0))[0]
        for number in (8, generation.APART_TOKENS)
    )
    assert many[:, :8].tolist() == few.tolist()


@pytest.mark.parametrize("name", ["tiny.StdlibTiny", "vq.VQStdlib", "gshard.DenseLm8B2x2Decode", "gpt.GptStaticSgu"])
def test_layers_one_by_one_draw_what_the_stack_draws(name, monkeypatch):
    """Tokens and what is remembered, with repetition counted and a second call after the first."""
    results, run_unstacked, turns = [], stack.Stack._run_unstacked, []
    monkeypatch.setattr(stack.Stack, "_run_unstacked", lambda *given: (turns.append(limit), run_unstacked(*given))[1])
    for limit in (stack.UNSTACK_MAX_BYTES, 0):
        monkeypatch.setattr(stack, "UNSTACK_MAX_BYTES", limit)
        session = Session(resolve(name, smoke=True), jax.devices()[:1])  # a task of its own: another compiled program
        with session.placed():
            variables = session.functions.init().variables
            prompt = jax.random.randint(jax.random.key(1), (2, 7), 0, 32)
            given = (session.task, variables, prompt, jnp.ones_like(prompt), jax.random.key(2))
            chosen = {"new_tokens": generation.APART_TOKENS, "sampler": Sampler(repetition_penalty=1.2), "capacity": 80}
            first, memory = generate(*given, **chosen)
            second, memory = generate(*given, **chosen, memory=memory)
        results.append((first, second, memory))
    assert set(turns) == {4 * 2**30}, "the first alone"
    unstacked, stacked = results
    assert jax.tree.structure(unstacked) == jax.tree.structure(stacked)
    for one, other in zip(jax.tree.leaves(unstacked), jax.tree.leaves(stacked), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_frequencies_follow_temperature():
    draw = jax.vmap(lambda rng, t: Sampler(temperature=0.5)(LOGITS, rng)[0], in_axes=(0, None))
    drawn = draw(jax.random.split(jax.random.key(0), 4000), 0)
    squared = np.square([0.5, 0.25, 0.15, 0.1])
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4000, squared / squared.sum(), atol=0.03)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1.0}, "temperature must be at least 0 (got -1.0)"),
        ({"top_k": 0}, "top_k must be at least 1 (got 0)"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1 (got 1.5)"),
        ({"typical_p": 0.0}, "typical_p must be above 0 and at most 1 (got 0.0)"),
        ({"eta": -0.1}, "eta must be above 0 and at most 1 (got -0.1)"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0 (got 0.0)"),
    ],
)
def test_bad_samplers(fields, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        Sampler(**fields)


def test_an_empty_prompt_is_refused():
    with pytest.raises(UsageError, match="prompt is empty"):
        pad_prompts([[1], []])
