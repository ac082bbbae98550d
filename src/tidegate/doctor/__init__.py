"""What is wrong with this board for a memory guard, and the exact fix: one check a file, each pure over one look."""
