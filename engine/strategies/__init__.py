"""Several tokens out of one pass: `choosing.py` has the rules by which block diffusion chooses them."""
