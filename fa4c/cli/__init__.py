"""The command line: one file a sub-command, each with `add_arguments(parser)` and `run(args)`. Nothing imports this package."""
