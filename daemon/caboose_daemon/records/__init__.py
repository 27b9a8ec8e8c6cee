"""What is known of runs, whoever knows it: a daemon that is asked, or a journal that is read."""
