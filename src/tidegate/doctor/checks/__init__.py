"""The checks. Each module has one ``check(board)`` that yields findings, and nothing where all is well."""
