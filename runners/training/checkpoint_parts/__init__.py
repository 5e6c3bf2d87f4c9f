"""Parts of checkpoints: other files, checksums, copies to write from, and patches of orbax for stores and clocks."""
