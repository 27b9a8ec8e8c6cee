"""`caboose diagnose --guided`: a symptom, the facts known from the run, a few questions, ranked causes.

Reading order: `symptoms`, `questions` (and the meaning of answers), `known` (facts from the run), `interview` (the
conversation).
"""
