"""What Sphinx runs to make pages, tables and pictures from the code."""
