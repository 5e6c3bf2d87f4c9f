"""Parts of checkpoints: files besides arrays, checksums, copies to write from, and patches of orbax for stores and clocks."""
