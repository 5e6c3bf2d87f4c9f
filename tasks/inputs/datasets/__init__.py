"""Data sets with their own preparation: enwik8, ImageNet64."""
