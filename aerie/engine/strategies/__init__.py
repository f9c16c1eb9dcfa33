"""Strategies: how an answer is generated, pass by pass: one token after the other, with drafts, or block by
block.

`strategy.py` has the protocol between a strategy and the scheduler. Each strategy has a file.
"""
