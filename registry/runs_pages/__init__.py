"""Pages of runs: one run (report.html and the pages of the site), and all runs with their curves over each other."""
