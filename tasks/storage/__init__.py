"""Files and folders, local or on an object store; locks, leases and JSON lines."""
