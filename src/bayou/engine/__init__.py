"""Work over a whole store: the protocol of a job, the executor of this process, and the one choice between engines.

A job is written once (`job.Job`). `local.LocalExecutor` runs its parts on threads of this process; an executor of
Spark, which the program's entry points install (`select.install`), runs them as tasks. Nothing else differs.
"""
