"""Files and folders, local or on an object store."""
