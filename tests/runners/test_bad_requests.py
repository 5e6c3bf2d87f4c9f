"""Every bad request gets one clear sentence and exit code 2; nothing is left half-written."""

import json

import pytest

from runners.main import main


def run(capsys, *arguments):
    code = main([*arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--exp=tiny.StdlibTinny"], "Unknown experiment 'tiny.StdlibTinny'. Did you mean 'tiny.StdlibTiny'"),
        (["--mode=trian"], "Unknown mode 'trian'. Did you mean 'train'"),
        (["--set=LEARNINGRATE=1"], "no knob or config 'LEARNINGRATE'. Did you mean 'LEARNING_RATE'"),
        (["--set=task.optimzer.beta1=1"], "Unknown field 'optimzer' in task. Did you mean 'optimizer'"),
        (["--set=NUM_LAYERS=two"], "NUM_LAYERS takes int above 0, not 'two'"),
        (["--set=DEVICE_MESH_SHAPE=2,2"], "needs 4 devices (DEVICE_MESH_SHAPE = (2, 2), got 8). Try --smoke"),
        (["--set=BATCH_SIZE=12"], "Dimension 12 of train.input: a batch of 12 rows"),
        (["--set=DEVICE_MESH_SHAPE=1,8"], "is split by"),
        (["--set=WEIGHTS.ffn_in_mf=P('data')"], "must have one entry per dimension of 'mf' (got 1)"),
        (["--set=WEIGHTS.ffn_in_mf=P('modle',None)"], "names 'modle'. Did you mean 'model'"),
        (
            ["--smoke", "--set=DATA_PATH=/no/such/file"],
            "The text file '/no/such/file' cannot be read: No such file or directory.",
        ),
        (["--wrokdir=x"], "Unknown flag '--wrokdir=x'. Did you mean '--workdir'"),
        (["--import=no_such_module"], "Module 'no_such_module' is not on the Python path"),
        (["--smoke", "--set=DATA=synthetic", "--set=train.input.batches=10"], "train.input ends after 10 batches"),
        (["--smoke", "--set=EVAL_ROWS=0"], "test.inputs.validation has no batch"),
        (["--smoke", "--set=BATCH_SIZE=0"], "BATCH_SIZE takes int above 0, not 0"),
        (["--smoke", "--set=NUM_HEADS=0"], "NUM_HEADS takes int above 0 or None, not 0"),
        (["--smoke", "--set=NUM_LAYERS=0"], "NUM_LAYERS takes int above 0, not 0"),
        (["--smoke", "--set=HEAD_DIM=5"], "head_dim must be even for rotary positions"),
        (["--smoke", "--set=LOSS_CHUNK=5"], "loss_chunk must divide the sequence length 32 (got 5)"),
        (["--smoke", "--set=GRADIENT_ACCUMULATION=0"], "GRADIENT_ACCUMULATION takes int above 0, not 0"),
        (["--smoke", "--set=SEED=-1"], "seed must be at least 0"),
        (["--smoke", "--set=DROPOUT=1.5"], "dropout rate must be at least 0 and below 1 (got 1.5)"),
        (["--smoke", "--set=DEVICE_MESH_SHAPE=2,2"], "got 8). Try --host_devices=4"),
        (["--host_devices=0"], "--host_devices must be at least 1 (got 0)"),
        (["--host_devices=x"], "invalid int value"),
        (["--mode=plan", "--chip=v33"], "Unknown chip 'v33'. Did you mean 'v3'"),
        (["--mode=plan", "--search"], "--search compares with a chip's memory and speed. Name a chip with --chip=v3"),
        (["--mode=plan", "--largest_batch"], "--largest_batch compares with a chip's memory and speed. Name a chip"),
        (["--mode=plan", "--search", "--over=mehs", "--chip=v3"], "Unknown dimension 'mehs' in --over=mehs. Did you"),
        (
            ["--mode=plan", "--search", "--over=remat", "--plan_step=decode", "--chip=v3"],
            "--over=remat has no effect with --plan_step=decode: a decoding step has no 'remat'. Set --over=mesh.",
        ),
        (["--mode=plan", "--over=mesh"], "--over needs --search. Add it, or remove --over."),
        (["--mode=plan", "--exhaustive"], "--exhaustive needs --search."),
        (["--mode=plan", "--write=a.py"], "--write needs --search."),
        (["--mode=plan", "--search", "--largest_batch"], "--search and --largest_batch are separate. Run"),
        (
            ["--mode=plan", "--search", "--smoke", "--write=a.py", "--chip=v3"],
            "--write cannot be combined with --smoke",
        ),
        (["--mode=plan", "--host_devices=4", "--set=DEVICE_MESH_SHAPE=1,8"], "needs 8 devices"),
        (["--mode=plan", "--topology=v3"], "must be a TPU and its grid of chips, like v3:8x8"),
        (["--mode=plan", "--topology=v33:2x2"], "Unknown chip 'v33' in --topology=v33:2x2. Did you mean 'v3'"),
        (["--mode=plan", "--topology=v3:2x2", "--chip=h100"], "implies its own chip (got --chip=h100). Remove --chip."),
        (["--mode=plan", "--plan_step=decoding"], "invalid choice: 'decoding'"),
        (["--exp=DenseLm8B2x2", "--smoke", "--set=PADDED_HEADS=4"], "padded_heads must be at least num_heads = 8"),
        (["--topology=v3:2x2"], "--topology is a flag of --mode=plan (got --mode=train)"),
        (
            ["--exp=MoeLm8x2B", "--smoke", "--set=NUM_LAYERS=1"],
            "FFN has a pattern of 2 layers, but NUM_LAYERS is 1 (got ('experts', 'dense'))",
        ),
        (["--exp=MoeLm8x2B", "--smoke", "--set=NUM_GROUPS=7"], "NUM_GROUPS must divide the 256 tokens"),
        (["--exp=DenseLm8B2x2", "--smoke", "--set=PAD_VOCAB_TO=0"], "PAD_VOCAB_TO takes int above 0, not 0"),
        (
            ["--exp=DenseLm8B2x2", "--smoke", "--set=NUM_BUCKETS=1"],
            "1 buckets up to a distance of 128 cannot",
        ),
        (["--exp=DenseLm8B2x2", "--smoke", "--set=task.gradient_dtype=int8"], "task.gradient_dtype takes one of"),
        (["--exp=MoeLm8x2B", "--smoke", "--set=CAPACITY_FACTOR=0"], "capacity must be at least 1 (got 0)"),
        (["--exp=MoeLm8x2B", "--smoke", "--set=SECOND_EXPERT=best"], "SECOND_EXPERT takes one of 'all', 'sampling'"),
        (["--exp=MLPerfBertDense1T", "--smoke", "--set=MASK_ID=999"], "mask_id must be a token below"),
        (["--exp=MLPerfBertDense1T", "--smoke", "--set=MASK_RATE=1.5"], "must be shares with a sum of at most 1"),
        (["--exp=VQStdlib", "--smoke", "--set=NUM_HEADS=5"], "NUM_HEADS must divide 2 * MODEL_DIM = 64 (got 5)"),
        (["--exp=VQStdlib", "--smoke", "--set=BLOCK_LEN=0"], "BLOCK_LEN takes int above 0, not 0"),
        (["--exp=VQStdlib", "--smoke", "--set=HEAD_DIM=0"], "HEAD_DIM takes int above 0 or None, not 0"),
        (["--exp=VQStdlib", "--smoke", "--set=NUM_CODES=0"], "NUM_CODES takes int above 0, not 0"),
        (["--exp=VQStdlib", "--smoke", "--set=CODEBOOK_DECAY=2"], "The codebook decay must be from 0 to 1 (got 2.0)"),
        (["--exp=VQStdlib", "--smoke", "--set=RESEED_BELOW=0"], "reseed_below must be above 0, or none (got 0.0)"),
        (["--exp=VQStdlib", "--smoke", "--set=REDUCTION=parallel"], "REDUCTION takes one of 'serial', 'matmul'"),
        (["--exp=VQThroughputMha", "--smoke", "--set=HEAD_DIM=5"], "HEAD_DIM must divide MODEL_DIM = 32 (got 5)"),
        (["--exp=VQStdlib", "--smoke", "--set=TBPTT_LEN=5"], "TBPTT_LEN must divide SEQ_LEN = 32 (got 5)"),
        (["--exp=VQStdlib", "--smoke", "--set=DATA=enwik8", "--set=VOCAB_SIZE=259"], "enwik8 needs its raw file"),
        (
            ["--exp=VQStdlib", "--smoke", "--set=DATA=enwik8", "--set=VOCAB_SIZE=256"],
            "VOCAB_SIZE must be at least 259 for bytes (got 256)",
        ),
        (["--set=NUM_STEPS=40"], "NUM_STEPS must be above WARMUP_STEPS = 100 with SCHEDULE = cosine (got 40)"),
        (
            ["--exp=VQStdlib", "--smoke", "--set=task.model.stack.block.blocks.2.ffn=none"],
            "Unknown field '2' in task.model.stack.block.blocks. Valid: '0', '1'",
        ),
        (["--set=PARAMETRIZATION=mup"], "PARAMETRIZATION = mup needs BASE_WIDTH"),
        (
            ["--set=PARAMETRIZATION=mup", "--set=BASE_WIDTH=48"],
            "BASE_WIDTH must divide MODEL_DIM = 128 under PARAMETRIZATION = mup (got 48)",
        ),
        (["--set=PARAMETRIZATION=mop"], "PARAMETRIZATION takes one of 'standard', 'mup', 'abs_mup', not 'mop'"),
        (
            ["--exp=MuTiny", "--smoke", "--set=OPTIMIZER=sgd"],
            "(got OPTIMIZER = sgd). Set it to adamw, lion, muon or adafactor",
        ),
        (["--exp=MuTiny", "--smoke", "--set=SCORE_FUNCTION=squared_relo"], "Did you mean 'squared_relu'"),
        (["--exp=MuTiny", "--smoke", "--set=HEAD_DIM=24"], "HEAD_DIM must divide MODEL_DIM = 64 (got 24)"),
        (["--exp=MuTiny", "--smoke", "--set=VOCAB_SIZE=100"], "VOCAB_SIZE must be at least 256 for bytes (got 100)"),
        (["--exp=MuTiny", "--mode=coord_check", "--widths=64"], "at least two widths, like 64,128,256 (got 64)"),
        (
            ["--exp=MuTiny", "--mode=coord_check", "--widths=32,64"],
            "BASE_WIDTH must divide MODEL_DIM = 32 under PARAMETRIZATION = mup (got 64)",
        ),
        (["--exp=MuTiny", "--mode=coord_check", "--steps=0"], "--steps must be at least 1 (got 0)"),
        (["--exp=MuTiny", "--mode=sweep", "--rates=fast"], "--rates must be positive numbers like 2^-11..2^-5"),
        (["--exp=MuTiny", "--mode=sweep", "--set=LEARNING_RATE=0.1"], "which sets it itself. Use --rates"),
        (["--exp=MuTiny", "--mode=coord_check", "--set=MODEL_DIM=128"], "which sets it itself. Use --widths"),
        (["--exp=MuTiny", "--mode=sweep", "--seeds=0"], "--seeds must be at least 1 (got 0)"),
        (["--exp=MuSmall", "--mode=sweep"], "needs 128 devices"),
        (
            ["--mode=sweep", "--widths=100,200"],
            "NUM_HEADS = 4 at MODEL_DIM = 128 is not an integer when scaled to width 100",
        ),
        (
            ["--exp=MuTiny", "--mode=sweep", "--steps=5"],
            "--steps is a flag of --mode=coord_check (got --mode=sweep). Set NUM_STEPS.",
        ),
        (
            ["--exp=MuTiny", "--mode=sweep", "--smoke", "--widths=64,80"],
            "BASE_WIDTH must divide MODEL_DIM = 80 under PARAMETRIZATION = mup (got 32)",
        ),
        (["--exp=MuTiny", "--mode=coord_check", "--set=LEARNING_RATE=0"], "LEARNING_RATE must be above 0 for a"),
        (
            ["--exp=MuTiny", "--set=TIE_EMBEDDINGS=true", "--set=UNEMBEDDING_INIT=zero"],
            "UNEMBEDDING_INIT = 'zero' has no effect with TIE_EMBEDDINGS = True. Remove it, or set TIE_EMBEDDINGS",
        ),
        (
            ["--exp=MuTiny", "--set=NORM=layer", "--set=NORM_SCALE=scalar"],
            "NORM_SCALE = scalar does not work with NORM = layer",
        ),
        (
            ["--exp=MuTiny", "--set=OPTIMIZER=lion", "--set=SCALE_EPSILON=true"],
            "SCALE_EPSILON = True has no effect with OPTIMIZER = 'lion'. Remove it, or set OPTIMIZER to 'adamw'",
        ),
        (["--exp=MuVQStdlib", "--set=ATTENTION_SCALE=1"], "ATTENTION_SCALE = 1.0 has no effect with MIXER = 'vq'"),
        (
            ["--set=LENGTH_STAGES=64"],
            "STAGED_STEPS = None and the lengths of its stages, LENGTH_STAGES or LENGTH_START",
        ),
        (
            ["--set=LENGTH_STAGES=512", "--set=STAGED_STEPS=9"],
            "a stage must have between 1 and seq_len = 256 positions (got 512)",
        ),
        (
            ["--set=LENGTH_START=64", "--set=STAGED_STEPS=9", "--set=STAGED_ROWS=reshape"],
            "a stage with rows = reshape must divide seq_len = 256 (got 192 positions)",
        ),
        (
            ["--set=LENGTH_STAGES=64", "--set=STAGED_STEPS=9", "--set=TBPTT_LEN=64"],
            "STAGED_STEPS does not work with TBPTT_LEN (got 64)",
        ),
        (["--smoke", "--set=WARM_START=no/such"], "WARM_START = no/such: The workdir 'no/such' does not exist"),
        (["--exp=MuTiny", "--mode=sweep", "--set=WARM_START=x"], "WARM_START has no effect with --mode=sweep (got x)"),
        (
            ["--mode=train", "--rates=0.1"],
            "--rates is a flag of --mode=scale or --mode=sweep (got --mode=train). Set LEARNING_RATE.",
        ),
        (["--mode=train", "--widths=1,2"], "--widths is a flag of --mode=coord_check or --mode=scale or --mode=sweep"),
        (["--wandb=project"], "--wandb needs the package wandb"),
    ],
)
def test_one_sentence(capsys, tmp_path, arguments, message):
    workdir = tmp_path / "run"
    code, out, err = run(capsys, "--exp=tiny.StdlibTiny", f"--workdir={workdir}", *arguments)
    assert code == 2
    assert message in err
    assert not workdir.exists(), "nothing half-written"
    assert err.startswith("vortaro: ")
    assert err.count("\n") == 1, "one line"
    assert "Traceback" not in out + err


def test_an_empty_text_file(capsys, tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    path = tmp_path / "empty.txt"
    flags = ("--smoke", f"--workdir={tmp_path / 'run'}", f"--set=train.input.source.path={path}")
    code, _, err = run(capsys, "--exp=tiny.StdlibTiny", *flags)
    assert code == 2
    assert err == f"vortaro: The text file '{path}' is empty.\n"
    assert not (tmp_path / "run").exists()


def test_a_workdir_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "--exp=tiny.StdlibTiny", "--smoke", f"--workdir={tmp_path / 'file' / 'run'}")
    assert code == 2
    assert "cannot be written: Not a directory. Choose another --workdir." in err


def test_no_workdir(capsys):
    code, _, err = run(capsys, "--exp=tiny.StdlibTiny")
    assert code == 2
    assert "A run folder is needed. Give --workdir=runs/NAME." in err


@pytest.mark.parametrize("mode", ["sample", "validation", "test"])
def test_modes_that_need_a_checkpoint_write_nothing_without_one(capsys, tmp_path, mode):
    workdir = tmp_path / "run"
    code, _, err = run(capsys, "--exp=tiny.StdlibTiny", "--smoke", f"--mode={mode}", f"--workdir={workdir}")
    assert code == 2
    assert "Train first" in err
    assert not workdir.exists()


def test_no_experiment_and_no_run_folder(capsys, tmp_path):
    code, _, err = run(capsys, f"--workdir={tmp_path / 'run'}")
    assert code == 2
    assert "is not a run folder (it has no experiment.json). Give --exp=NAME" in err


def test_an_unreadable_run_folder(capsys, tmp_path):
    (tmp_path / "experiment.json").write_text("{ not json")
    code, _, err = run(capsys, f"--workdir={tmp_path}")
    assert code == 2
    assert "cannot be read as an experiment" in err


def test_an_import_error_in_a_users_module_names_its_lines(inside, tmp_path):
    (tmp_path / "broken_models.py").write_text("def make():\n    raise RuntimeError('the reason')\n\nmake()\n")
    done = inside("runners.main", "--exp=broken_models.Model", "--workdir=run")
    assert done.returncode == 2
    assert done.stderr == (
        "vortaro: Importing 'broken_models' failed: RuntimeError: the reason (broken_models.py:2 in make, called at "
        "broken_models.py:4).\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_workdir_of_another_experiment(inside, tmp_path):
    (tmp_path / "run").mkdir()
    smoke = ("--smoke", "--workdir=run", "--no-tensorboard", "--set=NUM_STEPS=6", "--set=WARMUP_STEPS=1")
    assert inside("runners.main", "--exp=tiny.StdlibTiny", *smoke).returncode == 0
    before = (tmp_path / "run" / "experiment.json").read_bytes()
    other = inside("runners.main", "--exp=tiny.StdlibTinyLlama", *smoke)
    assert other.returncode == 2
    assert "holds a run of another experiment, tiny.StdlibTiny (the difference is above)" in other.stderr
    assert "FFN" in other.stdout
    changed = inside("runners.main", "--exp=tiny.StdlibTiny", *smoke, "--set=LEARNING_RATE=0.1")
    assert changed.returncode == 2
    assert "this experiment with other settings" in changed.stderr
    assert "LEARNING_RATE" in changed.stdout
    assert (tmp_path / "run" / "experiment.json").read_bytes() == before
    allowed = inside("runners.main", "--exp=tiny.StdlibTiny", *smoke, "--set=LEARNING_RATE=0.1", "--allow_changes")
    assert allowed.returncode == 0, allowed.stderr
    assert json.loads((tmp_path / "run" / "experiment.json").read_text())["knobs"]["LEARNING_RATE"]["value"] == "0.1"
