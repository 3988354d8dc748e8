"""Spark: its session and local server, the executor of jobs, large syncs, and SQL.

Nothing else imports Spark, pandas or pyarrow; nothing imports this before it is needed. In a light installation the
import of any of these modules raises `PackageMissing`, which names the extra: here, so that no module can forget it.
"""

from bayou.core.extras import SPARK, require

require(SPARK, "work on Spark")
