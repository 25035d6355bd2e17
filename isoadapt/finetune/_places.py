"""Names of the vectors of a model that a penalty is computed on."""

HEAD_INPUT, LAST, ALL, OUTPUT_EMBEDDINGS = "head_input", "last", "all", "output_embeddings"
