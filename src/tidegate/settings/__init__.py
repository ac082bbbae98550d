"""One table of settings; TOML, flags and environment are read from it."""
