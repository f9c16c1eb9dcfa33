"""How an answer is made, pass by pass: a token after the other, with drafts, or block by block.

`strategy.py` is what a strategy tells the scheduler; a file each has the strategies.
"""
