"""Cost of a training step on machines that are not attached: compilation, memory, collectives."""
