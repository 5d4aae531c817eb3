"""Modifiers by the names that they have in llm-compressor."""
