"""What a repo is told: `bayou.toml` and the environment, checked before anybody acts on it.

Precedence: flag, then environment, then file, then default. Flags are the callers' own; the rest is `load_config`.

    BAYOU_DATASTORE      URL or directory instead of the file's, whose namespace and options stay behind with it
    BAYOU_NAMESPACE      BAYOU_HYDRATE      BAYOU_SYNC_TIMEOUT      BAYOU_CONCURRENCY      BAYOU_POINT_LIMIT
    BAYOU_SPARK_REMOTE   BAYOU_SPARK_MASTER: either, instead of what the file says of Spark
    BAYOU_OFFLINE        1: neither pull nor push
    BAYOU_TRUST          1: allow whatever the repo asks for (`bayou.config.trust`)

An empty variable is as good as none. No value of an option is ever part of a message.
"""

from bayou.config.load import load_config, parse_config, spark_config, told_offline
from bayou.config.settings import Config, DatastoreConfig, Hydrate, SparkConfig, SyncConfig
from bayou.config.write import write_datastore, write_file

__all__ = [
    "Config",
    "DatastoreConfig",
    "Hydrate",
    "SparkConfig",
    "SyncConfig",
    "load_config",
    "parse_config",
    "spark_config",
    "told_offline",
    "write_datastore",
    "write_file",
]
