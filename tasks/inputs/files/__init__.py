"""Files by name, pattern or archive, local or remote; compressed files; rows in files of torch."""
