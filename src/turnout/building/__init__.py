"""Making bundles from source models."""
