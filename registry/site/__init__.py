"""The site of the registry: static pages of all experiments, their comparison, and the server for them."""
