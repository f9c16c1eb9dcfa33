"""The report: one file about what a machine did, without the identity of its owner."""
