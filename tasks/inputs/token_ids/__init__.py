"""Token ids that other programs wrote: numpy, nanoGPT, llm.c, Megatron, torch."""
