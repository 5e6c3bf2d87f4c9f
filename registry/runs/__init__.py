"""Run folders as data, without jax: records, states, metrics, and what is derived from them."""
