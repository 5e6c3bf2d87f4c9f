"""Weight conversion between frameworks: names, shapes, file formats."""
