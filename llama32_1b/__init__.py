"""The driver: run, chat, profile and compile; with the demo and synthetic checkpoints. Thin."""
