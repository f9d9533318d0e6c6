"""Organisations fine-tune one language model and send compressed updates only."""
