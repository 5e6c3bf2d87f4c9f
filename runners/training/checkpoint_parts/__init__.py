"""Parts of checkpoints: other files, which are kept, checksums, copies to write from, and patches of orbax."""
