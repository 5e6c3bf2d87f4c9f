"""Everything that knows seqio: registration, pipelines, rows, vocabularies."""
