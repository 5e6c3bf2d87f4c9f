"""Weights of other codes: files, flags and exports that are refused."""

import io

import numpy as np
import pytest

from layers.errors import UsageError
from runners.conversion.foreign_files import BoundedReader, read_weights
from runners.convert import main
from tests.support.references.foreign import (
    ALIBI,
    FUSED,
    SEQUENTIAL,
    VOCAB,
    WIDTH,
    bring_in,
    gpt2,
    little_gpt,
    saved,
    send_out,
)


def without(arrays, *starts):
    return {key: value for key, value in arrays.items() if not key.startswith(starts)}


PLAIN = little_gpt(learned=True, fused=False)
ADAPTER = {"blocks.0.adapter_attn.bottleneck.0.weight": np.zeros((4, 4), np.float32)}
MISFITS = {
    "adapters": (PLAIN | ADAPTER, [], "has adapters (blocks.0.adapter_attn.bottleneck.0.weight), which are not"),
    "no positions": (
        without(PLAIN, "wpe"),
        [],
        "has no wpe.weight for positions/position_tm. Use --set=",
    ),
    "positions": (
        PLAIN,
        ["POSITIONS=alibi"],
        "has wpe.weight, but the experiment has no positions/position_tm. ",
    ),
    "one norm": (PLAIN, FUSED, "Use --set=RESIDUAL=sequential"),
    "no second norm": (
        {key: value for key, value in PLAIN.items() if "ln2" not in key},
        [],
        "Use --set=RESIDUAL=parallel_shared_norm",
    ),
    "biases": (
        PLAIN,
        ["BIASES=()"],
        "no stack/block/mixer_norm/norm_bias_m. Use --set=BIASES=qkv,attention_out,ffn,norm",
    ),
    "no biases": (
        little_gpt(learned=True, fused=False, bias=False),
        [],
        "has no blocks.0.ln1.bias for stack/block/mixer_norm/norm_bias_m. Use --set=BIASES=()",
    ),
    "layers": (PLAIN, ["NUM_LAYERS=3"], "has 2 layers, but the experiment has 3. Use --set=NUM_LAYERS=2"),
    "a missing layer's key": (without(PLAIN, "blocks.1.mlp.fc1.w"), [], "has no blocks.1.mlp.fc1.weight for"),
    "vocabulary": (
        PLAIN,
        ["VOCAB_SIZE=48"],
        "in the experiment, for embedding/embedding_vm. Use --set=VOCAB_SIZE=40.",
    ),
    "width": (PLAIN, ["MODEL_DIM=96"], "wte.weight is 40x48 in"),
    "context": (PLAIN, ["SEQ_LEN=32"], "for positions/position_tm. Use --set=SEQ_LEN=16."),
    "hidden": (PLAIN, ["FFN_DIM=96"], "in the experiment, for stack/block/ffn/ffn_in_mf. Use --set=FFN_DIM=192."),
    "a shape": (
        PLAIN | {"blocks.1.attn.key.weight": np.zeros((40, 48), np.float32)},
        [],
        "blocks.1.attn.key.weight is 40x48 in",
    ),
    "an unknown key": (
        PLAIN | {"blocks.0.attn.qurey.weight": np.zeros(3, np.float32)},
        [],
        "which is unknown in little_gpt files. Did you mean 'blocks.0.attn.query.weight'",
    ),
    "another head": (
        PLAIN | {"lm_head.weight": PLAIN["wte.weight"] + 1},
        [],
        "has a lm_head.weight that differs from its wte.weight. Use --set=TIE_EMBEDDINGS=false.",
    ),
    "no head": (
        without(PLAIN, "lm_head"),
        ["TIE_EMBEDDINGS=false"],
        "has no lm_head.weight for head/unembedding",
    ),
    "another format": (gpt2(), [], "looks like a gpt2 file, not like little_gpt. Use --format=gpt2."),
    "no format": ({"a": np.zeros(3, np.float32)}, [], "has no key of little_gpt files (got a)."),
    "another mixer": (PLAIN, ["MIXER=static_sgu"], "files have no key for stack/block/mixer/mixer/"),
    "norms of queries": (PLAIN, ["QK_NORM=rms"], "Use --set=QK_NORM=none"),
    "a pointer": (
        PLAIN,
        ["HEAD_QK=8"],
        "has no head_q.weight for pointer/pointer_query_mc. Use --set=HEAD_QK=none",
    ),
    "another wrapping": (
        PLAIN | {"wte.absmax": np.zeros(1, np.float32)},
        [],
        "has wte.absmax, but not an 8-bit wte.weight with a wte.code of 256 values.",
    ),
    "8 bits of other blocks": (
        PLAIN
        | {"wte.weight": np.zeros((VOCAB, WIDTH), np.uint8)}
        | {"wte.absmax": np.zeros(3, np.float32), "wte.code": np.zeros(256, np.float32)},
        [],
        "has 3 values in wte.absmax, but wte.weight has 1 blocks of 4096.",
    ),
}


def assert_refused(capsys, code, message, workdir):
    out, err = capsys.readouterr()
    assert code == 2
    assert message in err
    assert err.startswith("vortaro: ")
    assert err.count("\n") == 1, "one line"
    assert "Traceback" not in out + err
    assert not workdir.exists(), "nothing half-written"


@pytest.mark.parametrize("case", MISFITS)
def test_files_that_do_not_fit(tmp_path, capsys, case):
    arrays, knobs, message = MISFITS[case]
    code = bring_in("little_gpt", saved(tmp_path, arrays), SEQUENTIAL, tmp_path / "run", *knobs)
    assert_refused(capsys, code, message, tmp_path / "run")


def test_files_that_cannot_be_read(tmp_path, capsys):
    whole = saved(tmp_path, PLAIN).read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-10])
    (tmp_path / "text.safetensors").write_text("this text is not a file of weights")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    (tmp_path / "other.json").write_text("[]")
    (tmp_path / "null.json").write_text('{"weight_map": {"a": "a\\u0000.safetensors"}}')
    (tmp_path / "empty").mkdir()
    for name, message in {
        "none.safetensors": "cannot be read: No such file or directory.",
        "cut.safetensors": "is damaged or not a safetensors file: ",
        "text.safetensors": "is damaged or not a safetensors file: ",
        "notes.txt": "A weight file must end in .safetensors, .pt, .pth, .bin (got ",
        "index.json": "gone.safetensors' cannot be read: No such file or directory.",
        "other.json": "is not a weight index: weight_map, from keys to files, is missing.",
        "null.json": "is not a weight index: some values of its weight_map are not file names.",
        "empty": "has none of model.safetensors.index.json, model.safetensors, pytorch_model.bin.index.json",
    }.items():
        code = bring_in("little_gpt", tmp_path / name, SEQUENTIAL, tmp_path / "run")
        assert_refused(capsys, code, message, tmp_path / "run")


def test_pickles_need_torch(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "model.pt").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"a pickle of torch, needs the package torch\. Run pip .*\.\[torch\]'\."):
        read_weights(str(tmp_path / "model.pt"))


IMPORT = ["import", "--format=gpt2", "--from=x.safetensors", "--exp=gpt2.Gpt2Small"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["imprt"], "Unknown verb 'imprt'. Did you mean 'import'"),
        (["import"], "import requires --from."),
        (["import", "--from=x.safetensors"], "import requires --format."),
        ([*IMPORT[:2], "--exp=gpt2.Gpt2Small"], "import requires --from."),
        (IMPORT[:3], "import requires --exp."),
        ([*IMPORT, "--format=gtp2"], "Unknown format 'gtp2'. Did you mean 'gpt2'"),
        ([*IMPORT, "--fromm=x"], "Unknown flag '--fromm=x'. Did you mean '--from'"),
        ([*IMPORT, "--to=x.safetensors"], "--to is a flag of export (got import)."),
        ([*IMPORT, "--exp=gpt2.Gpt2Smal"], "Unknown experiment 'gpt2.Gpt2Smal'. Did you mean 'gpt2.Gpt2Small'"),
        ([*IMPORT, "--set=NUM_HEADS=7"], "NUM_HEADS must divide"),
        (["export", "--format=gpt2", "--to=x.bin"], "must end in .safetensors (got 'x.bin')"),
        (["export", "--format=gpt2", "--to=x.safetensors"], "Train first"),
        (["export", "--format=gpt2", "--to=x.safetensors", "--smoke"], "--smoke is a flag of import (got export)."),
        (["export", "--format=gpt2"], "export requires --to."),
        (["export", "--to=x.safetensors"], "export requires --format."),
        (["export", "--format=gpt2", "--to=x.safetensors", "--shard_gb=1"], "--shard_gb is for folders (got --to=x.sa"),
        (["export", "--to=folder", "--shard_gb=0"], "--shard_gb must be above 0 (got 0)."),
        (
            ["export", "--to=folder", "--dtype=float16"],
            "Unknown dtype 'float16'. Did you mean 'bfloat16' or 'float32'?",
        ),
        ([*IMPORT, "--dtype=float32"], "--dtype is a flag of export (got import)."),
    ],
)
def test_bad_requests(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, gpt2(), "x.safetensors")
    code = main([*arguments, f"--workdir={tmp_path / 'run'}"])
    assert_refused(capsys, code, message, tmp_path / "run")


def test_exports_that_the_format_has_no_room_for(tmp_path, capsys):
    fused = saved(tmp_path, little_gpt(learned=False, fused=True))
    assert bring_in("little_gpt", fused, ALIBI, tmp_path / "run") == 0
    capsys.readouterr()
    to = tmp_path / "ours.safetensors"
    code = send_out("gpt2", tmp_path / "run", to)
    assert_refused(capsys, code, "gpt2 files require wpe.weight, but the experiment has no positions/position_tm", to)
    (tmp_path / "file").write_text("")
    code = send_out("little_gpt", tmp_path / "run", tmp_path / "file" / "ours.safetensors")
    assert_refused(capsys, code, "cannot be written to", to)
    code = send_out("little_gpt", tmp_path / "run", to, "--checkpoint=7")
    assert_refused(capsys, code, "Unknown checkpoint '7'", to)


def test_reads_end_where_the_file_does(tmp_path):
    """A buffer of the length that is asked for would not fit into memory."""
    (tmp_path / "model.pt").write_bytes(b"abcdef")
    with BoundedReader(io.FileIO(tmp_path / "model.pt")) as file:
        assert file.read(2) == b"ab"
        assert file.read(1 << 60) == b"cdef"
        assert file.read(1 << 60) == b""
        file.seek(3)
        assert file.read() == b"def"
