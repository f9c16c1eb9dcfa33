"""The command line: commands, finding a model, what is typed."""
