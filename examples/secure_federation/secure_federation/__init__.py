"""Organisations fine-tune one language model, and the server learns nothing but the sum of their updates."""
