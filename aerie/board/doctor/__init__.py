"""The doctor checks every layer between Python and the NPU, each by itself."""
