"""Base models, what is trained of them, and the results as files."""
