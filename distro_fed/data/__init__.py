"""An organisation's text: reading, shapes, tokens, batches."""
