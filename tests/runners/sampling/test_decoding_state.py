"""Decoding state as a file: a resumed sample equals one without a stop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization

from layers.errors import UsageError
from registry.resolve import resolve
from runners.sampling.decoding_state import read_memory, write_memory
from runners.session import Session
from tasks.decoding.generation import generate
from tasks.decoding.prompts import pad_prompts
from tasks.decoding.sampler import Sampler

GREEDY = Sampler(temperature=0.0)
NAMES = {"VQStdlib": [], "VQThroughputMqa": ["REDUCTION=scan"], "StdlibTiny": [], "FullStdlib": []}


@pytest.fixture(params=NAMES)
def session(request):
    axes = len(resolve(request.param).MESH_AXES)
    knobs = [f"DEVICE_MESH_SHAPE={','.join(['1'] * axes)}", *NAMES[request.param]]
    return Session(resolve(request.param, knobs, smoke=True), jax.devices()[:1])


def test_a_sample_in_two_parts_is_the_sample_in_one(session, tmp_path):
    file = str(tmp_path / "folder" / "state")
    tokens, real = pad_prompts([[40, 41, 42, 43, 44, 45], [60, 61, 62, 63, 64, 65]])
    with session.placed():
        variables, rng = session.functions.init().variables, jax.random.key(0)

        def run(tokens, new_tokens, **choices):
            real = np.ones_like(tokens)
            return generate(
                session.task, variables, tokens, real, rng, new_tokens=new_tokens, sampler=Sampler(), **choices
            )

        whole, _ = run(tokens, 11)
        first, memory = run(tokens, 4, capacity=10)
        write_memory(file, session, memory, 10, "me")
        memory, capacity = read_memory(file, session, [[], []], "me")
        second, _ = run(np.zeros((2, 0), np.int32), 7, memory=memory, capacity=capacity + 7)
        np.testing.assert_array_equal(np.concatenate([first, second], axis=1), whole)
        # More prompt after the state equals one long prompt.
        more = np.full((2, 3), 50, np.int32)
        memory = memory.replace(drawn=jnp.int32(0))
        after, _ = run(more, 7, memory=memory, capacity=capacity + 10)
        expected, _ = run(np.concatenate([tokens, first, more], axis=1), 7)
        np.testing.assert_array_equal(after, expected)
    assert real.all()


def test_states_that_do_not_fit_are_refused(tmp_path):
    session = Session(resolve("VQStdlib", ["DEVICE_MESH_SHAPE=1,1,1"], smoke=True), jax.devices()[:1])
    other = Session(resolve("VQStdlib", ["DEVICE_MESH_SHAPE=1,1,1", "NUM_CODES=8"], smoke=True), jax.devices()[:1])
    file = tmp_path / "state"
    with session.placed():
        tokens, real = pad_prompts([[1, 2, 3]])
        arguments = (session.task, session.functions.init().variables, tokens, real, jax.random.key(0))
        _, memory = generate(*arguments, new_tokens=2, sampler=GREEDY)
        write_memory(str(file), session, memory, 5, "me")
    for where, prompts, reader, message in (
        (other, [[]], "me", "sizes differ"),
        (session, [[], []], "me", "has 1 rows"),
        (session, [[]], "you", "was computed with me, but the checkpoint has you"),
    ):
        with pytest.raises(UsageError, match=message):
            read_memory(str(file), where, prompts, reader)
    content = serialization.msgpack_restore(file.read_bytes())
    older = tmp_path / "older"
    older.write_bytes(serialization.msgpack_serialize({k: v for k, v in content.items() if k != "paths"}))
    with pytest.raises(UsageError, match="in the format of another version"):
        read_memory(str(older), session, [[]], "me")
    older.unlink()
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UsageError, match="not a state written by --save_state"):
        read_memory(str(file), session, [[]], "me")
    with pytest.raises(UsageError, match="No such file"):
        read_memory(str(tmp_path / "none"), session, [[]], "me")
    assert [path.name for path in tmp_path.iterdir()] == ["state"], "nothing half-written is left"


@pytest.mark.slow
def test_the_command_resumes_at_its_stop(tmp_path, inside):
    knobs = ["DEVICE_MESH_SHAPE=1,1,2", "NUM_STEPS=3", "EVAL_EVERY=none", "EVAL_ROWS=8"]
    flags = ["--exp=vq.VQStdlib", "--smoke", "--no-tensorboard", *(f"--set={knob}" for knob in knobs)]
    run = ["--mode=sample", "--temperature=0", "--no-stop"]
    out = []

    def main(*arguments, code=0):
        done = inside("runners.main", "--workdir=run", *arguments, devices=2)
        assert done.returncode == code, done.stderr
        out.append(done.stdout)
        return done.stderr

    main(*flags)
    main(*run, "--prompt=def f(", "--max_new_tokens=12")
    whole = (tmp_path / "run/samples/00000003-seed0.txt").read_bytes()
    main(*run, "--prompt=def f(", "--max_new_tokens=5", "--save_state=kept")
    main(*run, "--max_new_tokens=7", "--load_state=kept")
    rest = (tmp_path / "run/samples/00000003-seed0-goes-on.txt").read_bytes()
    output = "".join(out)
    assert "Saved the state after 11 tokens to kept." in output
    assert "Continuing after the 11 tokens of kept:" in output
    assert whole.endswith(rest)
    assert "has 1 rows" in main(*run, "--load_state=kept", "--prompt=a", "--prompt=b", code=2)
