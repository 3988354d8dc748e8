"""Workflows: methods of models, run in order. People write and commit them as files, `workflows/<name>.yaml`.

Reading and checking workflows (`find`, `check`) sends no request. A run (`run`) takes a function that opens write
sessions, since `bayou.session` is a layer above. This package imports nothing by itself: most commands need only a part
of it.
"""
