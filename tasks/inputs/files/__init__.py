"""File access: local or remote files by name or pattern, compressed files, torch files of token ids."""
