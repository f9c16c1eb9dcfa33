"""The ground floor: errors, the content store, folders, knobs, the host's C++ compiler, child processes."""
