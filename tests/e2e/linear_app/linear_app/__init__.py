"""Linear regression as a federation, to try deployments with."""
