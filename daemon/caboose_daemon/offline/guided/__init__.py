"""`caboose diagnose --guided`: a symptom in the user's words, what is known already, a few questions, ranked causes.

Reading order: `symptoms`, `questions` (what may be asked, and what an answer means), `known` (what a run tells by
itself), `interview` (who asks what, and in which order).
"""
