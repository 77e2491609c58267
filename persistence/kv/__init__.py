"""The cache of it: manifests, segments' folders, disk limit."""
