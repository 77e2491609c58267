"""Copies of a store in an object store (S3 and its like): by content, restored into a new store."""
