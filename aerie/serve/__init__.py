"""A model as a service: OpenAI's API, and a page to talk to it in a browser.

HTTP is an asyncio loop's (`app.py`), the model one thread's (`worker.py`), in which answers share passes
through the weights in the decode family `rows`: so no answer depends on the load.
"""
