"""The configuration of a repo, from `bayou.toml` and the environment, checked before it is used.

Precedence: flag, then environment, then file, then default. Callers apply their flags; `load_config` does the rest.

    BAYOU_DATASTORE      URL or directory instead of the file's, whose namespace and options then do not apply
    BAYOU_NAMESPACE      BAYOU_HYDRATE      BAYOU_SYNC_TIMEOUT      BAYOU_CONCURRENCY      BAYOU_POINT_LIMIT
    BAYOU_SPARK_REMOTE   BAYOU_SPARK_MASTER: either replaces the [spark] table of the file
    BAYOU_OFFLINE        1: neither pull nor push
    BAYOU_TRUST          1: allow everything that needs permission (`bayou.config.trust`)

An empty variable counts as unset. No message contains the value of an option.
"""

from bayou.config.load import load_config, offline_requested, parse_config, spark_config
from bayou.config.settings import Config, DatastoreConfig, Hydrate, SparkConfig, SyncConfig
from bayou.config.write import write_datastore, write_file

__all__ = [
    "Config",
    "DatastoreConfig",
    "Hydrate",
    "SparkConfig",
    "SyncConfig",
    "load_config",
    "offline_requested",
    "parse_config",
    "spark_config",
    "write_datastore",
    "write_file",
]
