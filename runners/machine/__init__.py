"""The machine that a command runs on: its chips, memory pages, devices, stored programs and terminal."""
