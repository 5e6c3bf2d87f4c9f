"""Parts of checkpoints: files besides arrays, retention, checksums, copies to write from, patches of orbax."""
