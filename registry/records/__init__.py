"""Records of experiments: snapshots, their differences, the code and versions that made them."""
