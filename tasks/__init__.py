"""What is learned: tasks, optimizers, metrics, inputs, vocabularies."""
