"""The documentation site: its pages, and the code that makes some of them."""
