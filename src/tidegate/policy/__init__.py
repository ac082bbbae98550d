"""Pure decisions: frozen dataclasses in, decisions out. No I/O, no clock, no asyncio."""
