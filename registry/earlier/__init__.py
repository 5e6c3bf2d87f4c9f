"""Names and knobs of earlier versions, for reading their records and for advice."""
