"""The doctor: every layer between Python and the NPU, each checked by itself."""
