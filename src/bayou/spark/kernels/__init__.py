"""The functions that Spark's tasks run: they convert Arrow batches to records, and call the functions that also threads
of one process use. Nothing here imports Spark.
"""
