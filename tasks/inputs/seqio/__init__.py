"""seqio integration: registration, pipelines, rows, vocabularies."""
