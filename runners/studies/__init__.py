"""Studies: the cases of an entry, trained and compared."""
