"""Sources of documents: files, shards, data sets."""
