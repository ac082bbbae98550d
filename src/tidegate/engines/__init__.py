"""One adapter per inference engine, behind one Protocol."""
