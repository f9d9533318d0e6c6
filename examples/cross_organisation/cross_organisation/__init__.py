"""Organisations on machines of their own fine-tune one language model and send compressed updates only."""
