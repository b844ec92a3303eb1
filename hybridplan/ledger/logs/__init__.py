"""Boot logs of vLLM and SGLang: find the memory lines, recompute them, say what they mean."""
