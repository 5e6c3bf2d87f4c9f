"""Templates: the classes that entries extend. Their knobs are the choices of a model family."""
