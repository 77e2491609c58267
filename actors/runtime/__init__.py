"""pykka actors on few threads; knows no model and no agent; the only place that imports
`pykka._envelope`."""
