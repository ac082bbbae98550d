"""``tidegate setup``: the unit, drop-ins and sysctls that a guarded board needs, written so that they can be undone."""
