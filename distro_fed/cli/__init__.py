"""The command line: one small file per command, nothing heavy imported before it is needed."""
