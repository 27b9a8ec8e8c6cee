"""Rules say what is wrong; the diagnosis says why, how sure that is, what to do first and what not to do.

Reading order: `verdict` (what comes out), `evidence`, `case` (what is known), `cause` (what a cause is), `causes/` (one
file each), `weighing` (how they are ranked), `refusals` (advice that is not given, and why).
"""
