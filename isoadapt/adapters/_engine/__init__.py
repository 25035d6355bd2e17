"""The training engine: tasks of arrays and modules go in, results with affine maps come out."""
