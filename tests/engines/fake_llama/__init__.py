"""The parts of the fake llama-server, fake_engine.py: standard library only, for ``python -I -S``."""
