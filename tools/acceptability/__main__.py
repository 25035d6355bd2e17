"""Write the data file of the corpus: ``python -m tools.acceptability``."""

from tools.acceptability.corpus import DATA_FILE, draw_corpus, packed

if __name__ == "__main__":
    DATA_FILE.write_text(packed(draw_corpus(3200, 1196, seed=0)), encoding="utf-8")
