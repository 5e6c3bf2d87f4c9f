"""Sequence mixers: softmax, gated and vector-quantized attention, static SGU, and their caches."""
