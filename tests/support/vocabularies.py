"""Small vocabularies made on the spot: byte pairs, a word-piece tokenizer, SentencePiece models."""

import io
import json
import random
from pathlib import Path

TEXT = "the cat sat on the mat\nthe dog sat on the log\ndef f(x):\n    return x + 1\n" * 4
ODD = "naïve  日本語 🐈\t<|endoftext|> </s> \x00 end\n\n"


def byte_pairs(folder: Path) -> Path:
    """A byte-level tokenizer as tokenizer.json, and as vocab.json with merges.txt."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.model.save(str(folder))
    return folder


def word_pieces(folder: Path) -> Path:
    """A lower-casing word-piece tokenizer, as BERT has it."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator([TEXT], vocab_size=120, min_frequency=1, show_progress=False)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def unigrams(folder: Path) -> Path:
    """A tokenizer of T5's form: spaces as U+2581, an end token in a separate file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0), ("\u2581the", -1.0), ("\u2581cat", -1.5)]
    pieces += [(letter, -5.0) for letter in "abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    return folder


def sentence_piece(path: Path, seed: int = 0, **choices) -> Path:
    """A SentencePiece model of 60 pieces with the special ids of --mode=train_vocab; choices are the trainer's."""
    import sentencepiece

    words = [word for line in TEXT.split("\n") for word in line.split()]
    rng = random.Random(seed)
    lines = [" ".join(rng.choices(words, k=6)) for _ in range(50)]
    model = io.BytesIO()
    given = {"model_type": "bpe", "vocab_size": 60, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, minloglevel=2, hard_vocab_limit=False, **given | choices
    )
    path.write_bytes(model.getvalue())
    return path
