"""What this machine says about its memory. Readers only; every root directory is injectable."""
