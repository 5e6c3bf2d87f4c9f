"""Sequence mixers: softmax, gated and vector-quantised attention, static SGU, and their caches."""
