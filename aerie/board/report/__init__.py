"""The report: one file that tells what a machine did, and not whose it is."""
