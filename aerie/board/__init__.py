"""For the owner of a board: what works on this machine and what does not, and why."""
