"""One drafter family a file, behind one small base."""
