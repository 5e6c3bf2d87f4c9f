"""Token ids written by other programs: numpy, nanoGPT, llm.c, Megatron, torch."""
