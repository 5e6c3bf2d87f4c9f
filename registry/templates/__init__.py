"""Templates: the base classes of experiments. Their knobs are the choices of a model family."""
