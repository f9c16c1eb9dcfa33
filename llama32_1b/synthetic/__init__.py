"""A checkpoint of any size in Hugging Face format whose weights are random: for measuring, not for talking."""
