"""Work that looks at a whole store, on Spark.

Nothing else imports Spark, pandas or pyarrow; nothing imports this before it is needed.
"""
