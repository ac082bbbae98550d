"""The front door: an aiohttp application between clients and the worker."""
