"""Position information: embeddings added to tokens, rotations, and biases of attention scores."""
