"""Files of other codes for tests, with weights by a formula, and what a run folder computes."""

import jax
import numpy as np
from safetensors.numpy import save_file

from registry.resolve import resolve_recorded
from runners.convert import main
from runners.session import Session
from runners.training.checkpoints import Checkpoints
from runners.training.workdir import recorded

WIDTH, VOCAB, CONTEXT, LAYERS = 48, 40, 16, 2
SIZES = [f"MODEL_DIM={WIDTH}", f"VOCAB_SIZE={VOCAB}", f"SEQ_LEN={CONTEXT}", f"NUM_LAYERS={LAYERS}", "NUM_HEADS=6"]
SIZES += ["DATA=synthetic", "DTYPE=float32", "BATCH_SIZE=8", "GRADIENT_ACCUMULATION=1", "DROPOUT=0.0"]
SEQUENTIAL, ALIBI = "little_gpt.LittleGpt124M", "little_gpt.LittleGpt127M"
FUSED = ["RESIDUAL=parallel_shared_norm"]


def saved(folder, arrays, name="theirs.safetensors"):
    """Writes a file of weights; returns its path."""
    save_file(arrays, folder / name)
    return folder / name


def sets(*knobs):
    return [f"--set={knob}" for knob in [*SIZES, *knobs]]


def bring_in(format, source, exp, workdir, *knobs):
    return main(
        ["import", f"--format={format}", f"--from={source}", f"--exp={exp}", *sets(*knobs), f"--workdir={workdir}"]
    )


def send_out(format, workdir, to, *more):
    return main(["export", f"--format={format}", f"--workdir={workdir}", f"--to={to}", *more])


def variables_in(workdir):
    """The session of a run folder, and the arrays of its last checkpoint on no device."""
    session = Session(resolve_recorded(recorded(str(workdir))))
    state, _ = Checkpoints(workdir, read_only=True).require(session.abstract.state, "last")
    return session, jax.tree.map(np.asarray, state.variables)


def logits_of(workdir, tokens):
    session, variables = variables_in(workdir)
    with jax.default_matmul_precision("highest"):
        features, _ = session.task.model.apply(variables, tokens)
        return np.asarray(session.task.model.apply(variables, features, method="logits"))


def tokens_of(length=CONTEXT):
    i = np.arange(length)
    return np.stack([(7 * i**2 + 3 * i + 11 * b + 1) % VOCAB for b in range(2)]).astype(np.int32)


def wave(number, shape, kind):
    """Entry k of array r: 0.2 cos(0.37 k + r), a tenth of the cosine for biases, and one more than that for scales."""
    value = np.cos(0.37 * np.arange(np.prod(shape)) + number).reshape(shape)
    return (1 + 0.1 * value if kind == "scale" else (0.1 if kind == "bias" else 0.2) * value).astype(np.float32)


# Little-GPT's names for those of the flax port, whose order numbers the arrays; dense layers of flax are (in, out).
PORTED = {
    "CausalAttention_0.key_proj": ("attn.key", (WIDTH, WIDTH)),
    "CausalAttention_0.query_proj": ("attn.query", (WIDTH, WIDTH)),
    "CausalAttention_0.residual_out": ("attn.fc_resid", (WIDTH, WIDTH)),
    "CausalAttention_0.value_proj": ("attn.value", (WIDTH, WIDTH)),
    "LayerNorm_0": ("ln1", (WIDTH,)),
    "LayerNorm_1": ("ln2", (WIDTH,)),
    "MLPBlock_0.fc_in": ("mlp.fc1", (WIDTH, 4 * WIDTH)),
    "MLPBlock_0.fc_residual": ("mlp.fc_resid", (4 * WIDTH, WIDTH)),
}


def little_gpt(*, learned, fused, bias=True):
    """A state dict of Little-GPT."""
    leaves = {"wte.embedding": ("wte.weight", (VOCAB, WIDTH))}
    if learned:
        leaves["wpe.embedding"] = ("wpe.weight", (CONTEXT, WIDTH))
    modules = {"LayerNorm_0": ("norm", (WIDTH,))}
    for i in range(LAYERS):
        for flax, (torch, shape) in PORTED.items():
            if not (fused and torch == "ln2"):
                modules[f"TransformerBlock_{i}.{flax}"] = (f"blocks.{i}.{torch}", shape)
    for flax, (torch, shape) in modules.items():
        leaves[f"{flax}.{'kernel' if len(shape) == 2 else 'scale'}"] = (f"{torch}.weight", shape)
        if bias:
            leaves[f"{flax}.bias"] = (f"{torch}.bias", shape[-1:])
    arrays = {}
    for number, (flax, (torch, shape)) in enumerate(sorted(leaves.items())):
        value = wave(number, shape, flax.rpartition(".")[2])
        arrays[torch] = np.ascontiguousarray(value.T if flax.endswith("kernel") else value)
    return arrays | {"lm_head.weight": arrays["wte.weight"]}


def gpt2():
    """A state dict of Hugging Face's GPT-2, without the prefix."""
    shapes = {"wte.weight": (VOCAB, WIDTH), "wpe.weight": (CONTEXT, WIDTH), "ln_f.weight": (WIDTH,)}
    for i in range(LAYERS):
        shapes |= {f"h.{i}.{norm}.weight": (WIDTH,) for norm in ("ln_1", "ln_2")}
        shapes |= {f"h.{i}.attn.c_attn.weight": (WIDTH, 3 * WIDTH), f"h.{i}.attn.c_proj.weight": (WIDTH, WIDTH)}
        shapes |= {f"h.{i}.mlp.c_fc.weight": (WIDTH, 4 * WIDTH), f"h.{i}.mlp.c_proj.weight": (4 * WIDTH, WIDTH)}
    layers = [key for key in shapes if not key.startswith("w")]
    shapes |= {key.replace("weight", "bias"): shapes[key][-1:] for key in layers}
    kind = lambda key: "bias" if key.endswith("bias") else "scale" if "ln_" in key else "kernel"
    return {key: wave(number, shapes[key], kind(key)) for number, key in enumerate(sorted(shapes))}
