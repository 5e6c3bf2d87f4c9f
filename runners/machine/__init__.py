"""The machine that a command runs on: its chips, memory pages, virtual devices and stored programs."""
