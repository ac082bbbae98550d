"""tidegate: a resident memory guard for boards that run a local LLM."""

__version__ = "0.1.0"
