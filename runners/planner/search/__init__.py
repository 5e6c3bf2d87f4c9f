"""The search over meshes and other knobs for a fast plan that fits."""
