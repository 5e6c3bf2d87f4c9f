import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import meta

from layers.attention import gated
from layers.attention.code_cache import CodeCache, chunks, merge, prefixes
from layers.attention.vq import VQAttention
from layers.auxiliary import UPDATES, apply_updates
from tests.support.references.vq import CODES, HEADS, KEY, NUMBERS, attention_weights, mixer, variables

REDUCTIONS = ("serial", "matmul", "assoc_scan", "sum", "scan")


def normed(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


X = normed(NUMBERS["x"])
TP = variables("tp/params/")


def random_variables(heads, full=False, **fields):
    """Weights in which every term counts: initial ones have biases of 0 and counts of 1."""
    module = mixer(heads, full=full, **fields)
    made = jax.device_get(jax.jit(module.init)(jax.random.key(0), X[:, :4]))
    rng = np.random.default_rng(0)
    moved = lambda leaf: leaf + 0.3 * np.abs(rng.normal(size=leaf.shape)).astype("f")
    return module, jax.tree.map(moved, meta.unbox(made))


def dense(module, weights, key_hat, x, cut=True):
    """The same function by the plain formula: quadratic softmax over the keys as given, in float64."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    x = np.asarray(x, np.float64)
    rms = lambda y: y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-6)
    group = module.num_heads // module.num_kv_heads
    scale = module.key_dim**-0.25
    silu = lambda y: y / (1 + np.exp(-y))
    query = rms(np.einsum("bsm,mnd->bsnd", x, w["query_mnd"])) * scale
    value = np.einsum("bsm,mkf->bskf", x, w["value_mkf"])
    value = silu(value) if module.gated else value
    length, dim = x.shape[1:]
    frequency = module.wavelength ** (-np.arange(dim // 2) / (dim // 2))
    angle = np.arange(length)[:, None] * frequency
    sines = np.concatenate([np.sin(angle), np.cos(angle)], -1)
    distance = np.einsum("tm,mkd->tkd", sines, w["distance_mkd"]) * scale
    out = np.zeros((*x.shape[:2], module.num_heads, module.value_dim))
    gap = np.arange(length)[:, None] - np.arange(length)
    for n in range(module.num_heads):
        k = n // group
        content = (query[:, :, n] + scale * w["content_bias_nd"][n]) @ np.swapaxes(key_hat[:, :, k], 1, 2)
        by_distance = (query[:, :, n] + scale * w["position_bias_nd"][n]) @ distance[:, k].T
        position = np.take_along_axis(by_distance, np.maximum(gap, 0)[None].repeat(len(x), 0), axis=-1)
        if cut:
            position = np.where(gap <= module.memory_length, position, 0)
        scores = np.where(gap >= 0, content + position, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, :, n] = scores / scores.sum(-1, keepdims=True) @ value[:, :, k]
    if module.gated:
        out *= silu(np.einsum("bsm,mnf->bsnf", x, w["gate_mnf"]))
    return np.einsum("bsnf,nfm->bsm", out, w["attention_out_nfm"])


def quantized(module, variables, x):
    """Codes and quantized keys of `x`, by the plain formula."""
    w, book = variables["params"], variables["codebooks"]["quantizer"]
    key = np.einsum("bsm,mkd->bskd", np.asarray(x, np.float64), w["key_mkd"])
    key = key / np.sqrt((key**2).mean(-1, keepdims=True) + 1e-6) * module.key_dim**-0.25
    words = np.asarray(book["codebook_sum_kcd"], np.float64) / np.maximum(book["codebook_count_kc"], 0.01)[..., None]
    codes = ((key[:, :, :, None] - words) ** 2).sum(-1).argmin(-1)
    return codes, np.stack([words[k][codes[:, :, k]] for k in range(len(words))], axis=2), key


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_reference(reduction):
    y, state = jax.jit(mixer(reduction=reduction).apply)(TP, X)
    assert state is None
    np.testing.assert_allclose(y, NUMBERS["tp/res"], atol=1e-5)


@pytest.mark.parametrize(("heads", "reduction"), [(h, r) for h in ("shga", "mha") for r in REDUCTIONS])
def test_the_reference_with_other_heads(heads, reduction):
    module = mixer(heads, reduction=reduction)
    (y, _), collections = module.apply(variables(f"opt/{heads}/params/", heads), X, mutable=["losses"])
    theirs = "serial" if reduction == "scan" else reduction
    np.testing.assert_allclose(y, NUMBERS[f"opt/{heads}/{theirs}/res"], atol=1e-5)
    commit = collections["losses"]["quantizer"]["commit_loss"]
    np.testing.assert_allclose(commit, 0.25 * NUMBERS[f"opt/{heads}/{theirs}/l_commit"], rtol=1e-5)


def test_codes_and_caches_of_the_reference():
    module = mixer()
    codes, _, _ = quantized(module, TP, X)
    np.testing.assert_array_equal(codes[..., 0], NUMBERS["tp/z"].reshape(2, 32))
    state = module.init_state(2, 0)
    for block in range(4):
        y, state = jax.jit(module.apply)(TP, X[:, 8 * block : 8 * block + 8], state)
        theirs = f"state/{block + 1}/"
        np.testing.assert_allclose(y, NUMBERS[f"state/res{block}"], atol=1e-5)
        np.testing.assert_allclose(state.cache.mean_kcf, NUMBERS[theirs + "aggcache/upper_div_lower"], atol=1e-6)
        np.testing.assert_array_equal(state.cache.count_kc, NUMBERS[theirs + "aggcache/lower"])
        np.testing.assert_array_equal(np.moveaxis(state.window.codes_tk, 1, 2), NUMBERS[theirs + "xlcache/z"])
        key = np.moveaxis(np.asarray(state.window.key_tkd), 1, 2)
        np.testing.assert_allclose(key, NUMBERS[theirs + "xlcache/k_hat"], atol=1e-6)


@pytest.mark.parametrize(("inflation", "theirs"), [(4.0, ""), (32.0, "_ndev8")])
def test_gradient_and_codebook_of_the_reference(inflation, theirs):
    module = mixer(quantizer={"inflation": inflation})

    def objective(params, x):
        variables = {**TP, "params": params}
        (y, _), collections = module.apply(variables, normed(x), mutable=["losses", UPDATES])
        commit = collections["losses"]["quantizer"]["commit_loss"]
        return jnp.sum(y * NUMBERS["cot"]) + commit, collections[UPDATES]

    (gradient, by_x), updates = jax.jit(jax.grad(objective, argnums=(0, 1), has_aux=True))(TP["params"], NUMBERS["x"])
    expected, _ = attention_weights("tp/grad/")
    for name, value in expected.items():
        np.testing.assert_allclose(gradient[name], value, atol=1e-4 * np.abs(value).max(), err_msg=name)
    np.testing.assert_allclose(by_x, NUMBERS["tp/grad_x"], atol=1e-4 * np.abs(NUMBERS["tp/grad_x"]).max())
    book = apply_updates(TP, updates)["codebooks"]["quantizer"]
    np.testing.assert_allclose(book["codebook_sum_kcd"][0], NUMBERS[f"tp/new_codebook_sum{theirs}"], atol=1e-5)
    np.testing.assert_allclose(book["codebook_count_kc"][0], NUMBERS[f"tp/new_codebook_count{theirs}"], rtol=1e-6)


def test_bfloat16_of_the_reference():
    y, _ = mixer(dtype="bfloat16").apply(TP, X.astype(jnp.bfloat16))
    # Theirs holds scores, the softmax and counts in bfloat16, ours in float32.
    np.testing.assert_allclose(y.astype(np.float32), NUMBERS["tp/res"], atol=0.012)
    np.testing.assert_allclose(y.astype(np.float32), NUMBERS["tp_bf16/res"], atol=0.02)


@pytest.mark.parametrize("heads", HEADS)
def test_linear_equals_quadratic_over_quantised_keys(heads):
    module, variables = random_variables(heads)
    _, key_hat, _ = quantized(module, variables, X)
    np.testing.assert_allclose(module.apply(variables, X)[0], dense(module, variables["params"], key_hat, X), atol=1e-5)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("chunk", "segmented"), [(3, True), (16, False)])
def test_gradients_of_the_twin_do_not_depend_on_its_chunks(heads, chunk, segmented, monkeypatch):
    """Keys after a chunk are left out; the last chunk may be shorter, and segments may begin inside of chunks."""
    monkeypatch.setattr(gated, "LEAST_CHUNK", 1)
    segments = jnp.sort(jax.random.randint(jax.random.key(5), X.shape[:2], 0, 4)) if segmented else None

    def loss(x, variables, chunk):
        module = random_variables(heads, full=True, query_chunk=chunk)[0]
        return jnp.sum(jnp.sin(module.apply(variables, x, None, segments)[0]))

    variables = random_variables(heads, full=True)[1]
    found, expected = (jax.grad(loss, (0, 1))(X, variables, size) for size in (chunk, 512))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4, rtol=1e-4), found, expected)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("chunk", "least"), [(8, 1), (8, 256), (512, 256)])
def test_the_twin_is_plain_attention_with_positions_everywhere(heads, chunk, least, monkeypatch):
    monkeypatch.setattr(gated, "LEAST_CHUNK", least)
    module, variables = random_variables(heads, full=True, query_chunk=chunk)
    params = {"params": variables["params"], "codebooks": random_variables(heads)[1]["codebooks"]}
    _, _, key = quantized(mixer(heads), params, X)
    expected = dense(module, variables["params"], key, X, cut=False)
    np.testing.assert_allclose(module.apply(variables, X)[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("block", "memory", "heads", "reduction", "length"),
    [
        (1, 5, "shga", "scan", 9),  # token by token
        (3, 8, "mqa", "serial", 32),  # blocks that divide neither memory nor length
        (4, 40, "shga", "matmul", 32),  # memory beyond the sequence, many blocks in it
        (5, 1, "mha", "assoc_scan", 31),
        (16, 5, "shga", "sum", 32),  # blocks longer than the memory
        (33, 8, "mqa", "scan", 32),  # a block longer than the sequence
        (8, 5, "mha", "scan", 1),
    ],
)
def test_no_output_depends_on_blocks(block, memory, heads, reduction, length):
    module, variables = random_variables(heads, memory_length=memory)
    other = mixer(heads, memory_length=memory, block_length=block, reduction=reduction)
    expected = jax.jit(module.apply)(variables, X[:, :length])[0]
    np.testing.assert_allclose(jax.jit(other.apply)(variables, X[:, :length])[0], expected, atol=1e-5)


def test_only_gradients_of_keys_depend_on_blocks():
    """Values have theirs through window and cache; keys only where they are seen one by one."""
    gradients = []
    for block in (8, 4):
        module, variables = random_variables("shga", block_length=block)
        loss = lambda params, m=module, v=variables: jnp.sum(m.apply({**v, "params": params}, X)[0] ** 2)
        gradients.append(jax.jit(jax.grad(loss))(variables["params"]))
    differ = [name for name, a in gradients[0].items() if np.abs(a - gradients[1][name]).max() > 1e-3 * np.abs(a).max()]
    assert differ == ["key_mkd"]


@pytest.mark.parametrize(
    ("bounds", "cuts", "reduction", "block"),
    [
        ((5, 6, 21), (), "serial", 3),
        ((1, 9, 30), (13,), "matmul", 4),
        ((16,), (4, 16), "assoc_scan", 4),
        ((2, 3, 17), (20,), "sum", 4),
        ((7, 24), (8, 9), "scan", 8),
    ],
)
def test_segments_of_a_row_are_as_if_alone(bounds, cuts, reduction, block):
    """Packed rows: whatever is cached of one segment is not seen by the next."""
    module, variables = random_variables("shga", reduction=reduction, block_length=block, memory_length=4)
    apply = jax.jit(module.apply)
    edges = [0, *bounds, 32]
    ids = jnp.asarray(np.repeat(np.arange(len(edges) - 1) + 1, np.diff(edges)))[None].repeat(2, 0)
    alone = [apply(variables, X[:, a:b])[0] for a, b in itertools.pairwise(edges)]
    state, pieces = module.init_state(2, 0), []
    for a, b in itertools.pairwise([0, *cuts, 32]):
        y, state = apply(variables, X[:, a:b], state, ids[:, a:b])
        pieces.append(y)
    np.testing.assert_allclose(jnp.concatenate(pieces, 1), jnp.concatenate(alone, 1), atol=1e-5)


def jacobian_of(module, variables, x):
    """d of the sum of outputs at t, by inputs at t': (t, t', m)."""
    return jax.jit(jax.jacobian(lambda x: module.apply(variables, x)[0].sum((0, 2))))(x)[:, 0]


def test_without_cache_nothing_beyond_the_memory_counts():
    module, variables = random_variables("shga", cache=False, memory_length=5, block_length=4)
    jacobian = jacobian_of(module, variables, X[:1, :16])
    seen = np.abs(jacobian).sum(-1) > 1e-9
    gap = np.arange(16)[:, None] - np.arange(16)
    np.testing.assert_array_equal(seen, (gap >= 0) & (gap <= 5))
    whole, _ = random_variables("shga", memory_length=5, block_length=4)
    assert np.abs(whole.apply(variables, X)[0] - module.apply(variables, X)[0]).max() > 1e-3


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("full", [False, True])
def test_causality_by_jacobian(heads, full):
    module, variables = random_variables(heads, full=full)
    jacobian = jacobian_of(module, variables, X[:1, :24])
    size = np.abs(jacobian).sum(-1)
    assert np.triu(size, 1).max() == 0
    assert size[np.tril_indices(24)].min() > 0, "everything before is seen"
    assert np.diag(size).min() > 1e-4
    assert size[23, 0] > 0, "the first token is seen by the last, through the cache"


def test_gradient_through_the_cache_can_be_stopped():
    values = {}
    for through in (True, False):
        module, variables = random_variables("shga", gradient_through_cache=through)
        loss = lambda x, m=module, v=variables: jnp.sum(m.apply(v, x)[0][:, 24:] ** 2)
        values[through] = jax.jit(jax.value_and_grad(loss))(X)
    np.testing.assert_allclose(values[True][0], values[False][0], rtol=1e-6)
    assert np.abs(values[True][1][:, :24]).max() > 1e-5
    assert np.abs(values[False][1][:, :24]).max() == 0
    assert np.abs(values[False][1][:, 24:]).max() > 1e-3


@pytest.mark.parametrize("reduction", REDUCTIONS[:-1])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_reductions_agree_and_groups_change_nothing(reduction, groups):
    rng = np.random.default_rng(1)
    codes = rng.integers(0, CODES + 1, (3, 8, 4, 2))
    values = rng.normal(size=(3, 8, 4, 2, 5)).astype("f")
    ids = np.sort(rng.integers(1, 4, (3, 32)), axis=1).reshape(3, 8, 4)
    parts = chunks(jnp.asarray(codes), jnp.asarray(values), jnp.asarray(ids), CODES)
    start = CodeCache(jnp.ones((3, 2, CODES, 5)), jnp.full((3, 2, CODES), 2.0), jnp.ones(3, jnp.int32))
    expected, total = [], start
    for r in range(8):
        expected.append(total)
        total = merge(total, jax.tree.map(lambda x, r=r: x[:, r], parts))
    before, end = prefixes(start, parts, reduction, groups)
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs, 1), *expected)
    for got, want in ((before, stacked), (end, total)):
        np.testing.assert_array_equal(got.count_kc, want.count_kc)
        np.testing.assert_allclose(got.mean_kcf, want.mean_kcf, atol=1e-5)


def test_counts_stay_exact_in_bfloat16():
    """300 + 1 is 300 in bfloat16; here it is 301."""
    module, variables = random_variables("shga", dtype="bfloat16", block_length=1, memory_length=1)
    state = module.init_state(1, 0)
    cache = state.cache.replace(count_kc=state.cache.count_kc + 300, segment=jnp.ones(1, jnp.int32))
    state, read = state.replace(cache=cache), jax.jit(module.apply)
    for i in range(4):
        _, state = read(variables, X[:1, i : i + 1].astype(jnp.bfloat16), state)
    assert state.cache.count_kc.dtype == jnp.float32
    assert float(state.cache.count_kc.sum()) == 300 * CODES + 3


def test_dead_codes_are_seeded_from_keys_of_the_batch():
    module = mixer(quantizer={"reseed_below": 0.5})
    weights, _ = attention_weights("tp/params/")
    book = {"codebook_sum_kcd": np.full((1, CODES, KEY), 50.0, "f"), "codebook_count_kc": np.full((1, CODES), 0.1, "f")}
    book["codebook_count_kc"][0, 0] = 40.0  # nearest to every key
    given = {"params": weights, "codebooks": {"quantizer": book}}
    ids = jnp.ones((2, 32), jnp.int32).at[:, 20:].set(0)
    _, collections = module.apply(given, X, None, ids, mutable=[UPDATES], rngs={"dropout": jax.random.key(0)})
    new = apply_updates(given, collections[UPDATES])["codebooks"]["quantizer"]
    count = np.asarray(new["codebook_count_kc"][0])
    np.testing.assert_allclose(count, [0.99 * 40 + 0.01 * 40, *[1.0] * (CODES - 1)], rtol=1e-6)
    _, _, key = quantized(module, {"params": weights, "codebooks": {"quantizer": book}}, X)
    real = key[:, :20, 0].reshape(-1, KEY)
    for code in range(1, CODES):
        gaps = np.abs(real - np.asarray(new["codebook_sum_kcd"][0, code])).max(-1)
        assert gaps.min() < 1e-5, "a key of the batch, none of its padding"
    # Seeded codes stay for a while without keys; a batch of padding changes none of them.
    after = {**given, "codebooks": {"quantizer": new}}
    _, collections = module.apply(after, X, None, 0 * ids, mutable=[UPDATES], rngs={"dropout": jax.random.key(1)})
    later = apply_updates(after, collections[UPDATES])["codebooks"]["quantizer"]
    np.testing.assert_allclose(later["codebook_sum_kcd"], 0.99 * new["codebook_sum_kcd"], rtol=1e-5)
    np.testing.assert_allclose(later["codebook_count_kc"], 0.99 * new["codebook_count_kc"], rtol=1e-5)


def test_codewords_map_to_themselves():
    module, variables = random_variables("mha")
    book = variables["codebooks"]["quantizer"]
    words = book["codebook_sum_kcd"] / book["codebook_count_kc"][..., None]
    found = module.quantizer.apply({"codebooks": book}, jnp.asarray(words).swapaxes(0, 1)[None])
    np.testing.assert_array_equal(found.codes_bsk[0], np.arange(CODES)[:, None].repeat(2, 1))


def test_the_state_does_not_grow():
    module = mixer()
    assert isinstance(module, VQAttention)
    sizes = [sum(leaf.nbytes for leaf in jax.tree.leaves(module.init_state(2, n))) for n in (10, 10**6)]
    assert sizes[0] == sizes[1]
