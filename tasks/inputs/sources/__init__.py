"""Where documents come from: files, shards, data sets."""
