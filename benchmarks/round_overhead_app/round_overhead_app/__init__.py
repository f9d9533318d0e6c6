"""One trivial training, served by PrivateClient and by a plain handler in turn."""
