"""Gated delta rule (Gated DeltaNet of Qwen3-Next and Qwen3.5; without a gate, DeltaNet)."""
