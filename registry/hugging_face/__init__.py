"""config.json of Hugging Face's models: which knobs its keys are, in both directions, by family."""
