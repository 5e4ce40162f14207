"""Inventories to begin with, as `clusterctl init` writes them; inventory/ has the same."""
