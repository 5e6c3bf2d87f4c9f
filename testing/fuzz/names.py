"""Names of the kinds, without the libraries that read them."""

NAMES = (
    "set",
    "config",
    "record",
    "safetensors",
    "checkpoint",
    "saved_state",
    "tokens",
    "jsonl",
    "cache",
    "tar",
    "torch",
    "tokenizer",
    "sentencepiece",
)
NEED_TORCH = ("safetensors", "torch")
