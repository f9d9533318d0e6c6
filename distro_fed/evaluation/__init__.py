"""How good a model is on text that it was not trained on."""
