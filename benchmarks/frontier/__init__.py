"""Loss against bytes: runs many configurations of the product and its baselines, and draws what came out."""
