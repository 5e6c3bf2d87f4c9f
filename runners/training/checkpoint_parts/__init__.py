"""Parts of checkpoints: files besides arrays, checksums, and patches of orbax for stores and clocks."""
