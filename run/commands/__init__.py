"""What each command does, apart from how its options are spelt (that is run/cli.py)."""
