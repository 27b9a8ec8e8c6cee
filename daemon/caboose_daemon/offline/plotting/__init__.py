"""`caboose plot`: the charts of runs, and what is drawn in them."""
