"""What is written down: metrics text."""
