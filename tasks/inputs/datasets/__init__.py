"""Data sets with a preparation of their own: enwik8, ImageNet64."""
