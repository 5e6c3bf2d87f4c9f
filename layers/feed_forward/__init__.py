"""Position-wise layers: dense and gated feed-forward, experts and their routing."""
