"""Vocabularies: bytes, SentencePiece, Hugging Face tokenizers."""
