"""The tuner: which configurations of a variant are worth a measurement, their times on a GPU, and what the compiler takes from these.

`prepare` needs the compiler and no GPU, `measure` a GPU and the runtime only, `apply` neither; between them travels a folder of
artifacts, then a JSON file. `fa4c tune` runs them together or one at a time (docs/tune.md).
"""
