"""What a program takes of a device, read from its text alone: nothing is compiled and nothing is run."""
