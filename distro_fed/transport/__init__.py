"""Updates in and out of Flower's messages, and an in-process Grid."""
