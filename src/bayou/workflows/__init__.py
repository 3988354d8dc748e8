"""Workflows: methods of models, run in order. One is a file that people write and commit, `workflows/<name>.yaml`.

Reading and checking one (`find`, `check`) sends nothing. A run (`run`) is given a function that opens write sessions,
since those lie above it. Nothing is loaded here: most commands need only a part.
"""
