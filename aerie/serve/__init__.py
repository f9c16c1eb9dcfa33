"""Serve models over HTTP, with OpenAI's API and a chat page for the browser.

HTTP runs in an asyncio loop (`app.py`), each model in one thread (`worker.py`). Requests of a model share
forward passes in the decode path `rows`, so no output depends on the load.
"""
