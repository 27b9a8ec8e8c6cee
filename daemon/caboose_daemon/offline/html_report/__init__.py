"""`caboose report`: the HTML report, one file about one run.

Reading order: `figures` (numbers for the charts), `passages` (the text), `document` (the file), `picture` (as PNG).
"""
