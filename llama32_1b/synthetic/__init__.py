"""A checkpoint of any size in Hugging Face format, with random weights: for measuring, not for talking."""
