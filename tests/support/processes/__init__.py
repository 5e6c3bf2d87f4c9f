"""Several processes: how tests start them, and what runs in place of hosts, launch tools and the runner."""
