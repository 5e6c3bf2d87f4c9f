"""Run folders of every family, written by an earlier version: later versions must be able to resume them.

    python -m tests.support.golden_runs FAMILY ...

writes those of some families again. Do so only on purpose: if a change makes it necessary, users cannot resume their
older run folders. Each archive holds a run stopped at step 2 of 4, with the metrics of all four steps in metrics.jsonl.
"""

import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.support.plugins.commands import inside

FOLDER = Path(__file__).parents[1] / "golden" / "runs"
STOPPED_AT, STEPS = 2, 4
SHARED = {"DATA_PATH": "text.txt", "NUM_STEPS": STEPS, "LOG_EVERY": 1, "SAVE_EVERY": 2, "EVAL_EVERY": 2}
SMALL = {"MODEL_DIM": 16, "SEQ_LEN": 16, "NUM_HEADS": 2}
FAMILY = {"MODEL_DIM": 16, "SEQ_LEN": 16, "FFN_DIM": 32, "NUM_HEADS": 4, "VOCAB_SIZE": 256}
EXPERIMENTS = {
    "gemma": ("gemma.Gemma2_2B", FAMILY),
    "gpt": ("gpt.GptStdlib", SMALL),
    "gpt2": ("gpt2.Gpt2Small", SMALL),
    "gshard": ("gshard.MoeLm8x2B", SMALL | {"FFN_DIM": 32}),
    "little_gpt": ("little_gpt.LittleGpt127M", SMALL),
    "llama": ("llama.Llama3_1_8B", FAMILY),
    "mistral": ("mistral.Mixtral8x7B", FAMILY | {"NUM_EXPERTS": 4}),
    "mix": ("mix.VqMoeStdlib", {"MODEL_DIM": 16, "SEQ_LEN": 32}),
    "mu": ("mu.MuTiny", {"MODEL_DIM": 32, "SEQ_LEN": 16, "VOCAB_SIZE": 258}),
    "olmo": ("olmo.Olmo2_7B", FAMILY),
    "pythia": ("pythia.Pythia70M", FAMILY),
    "qwen": ("qwen.Qwen3_8B", FAMILY),
    "tiny": ("tiny.StdlibTiny", SMALL),
    "vq": ("vq.VQTiny", {"MODEL_DIM": 16, "SEQ_LEN": 32}),
    "wiki_bert": ("wiki_bert.MLPerfBertDense500B", SMALL | {"FFN_DIM": 32}),
    "zero": ("zero.Zero417MStage3", SMALL),
}
WORDS = "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which"


def write_text(folder: Path) -> None:
    """The text that the runs read, which a formula makes."""
    words, number = WORDS.split(), 7
    for _ in range(3000):
        number = (1103515245 * number + 12345) % 2**31
        words.append(words[(number >> 16) % len(words)])
    (folder / "text.txt").write_text("\n".join(" ".join(words[i : i + 12]) for i in range(0, len(words), 12)))


def unpack(family: str, folder: Path) -> None:
    """Puts the run into `folder/run` and its text next to it."""
    write_text(folder)
    with tarfile.open(FOLDER / f"{family}.tar.xz") as archive:
        archive.extractall(folder, filter="data")


def make(family: str) -> None:
    """Trains the run of a family and writes its archive."""
    name, knobs = EXPERIMENTS[family]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_text(folder)
        sets = [f"--set={knob}={value}" for knob, value in (SHARED | knobs).items()]
        flags = [f"--exp={name}", "--smoke", "--workdir=run", "--no-tensorboard", *sets]
        done = inside(folder, "runners.main", *flags)
        assert done.returncode == 0, done.stderr
        shutil.rmtree(folder / "run" / "checkpoints" / str(STEPS))
        FOLDER.mkdir(exist_ok=True)
        with tarfile.open(FOLDER / f"{family}.tar.xz", "w:xz") as archive:
            for part in ("experiment.json", "metrics.jsonl", "checkpoints"):
                archive.add(folder / "run" / part, f"run/{part}", filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if member.name.endswith("/commit_success.txt"):  # only marks on object stores; it names the folder of that time
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    for chosen in sys.argv[1:] or EXPERIMENTS:
        make(chosen)
