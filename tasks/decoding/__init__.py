"""Text generation: the cached decoding loop and the samplers."""
