"""Settings of a run: sections of a TOML file as frozen dataclasses, and flags that replace them.

`Config` holds all sections; those that only one task has are in its package, in `settings.py`.
"""

from typing import TYPE_CHECKING

from rowmill._lazy import lazy

if TYPE_CHECKING:
    from rowmill.config.config import SECTIONS, Config, load_config, section_from, settings_of
    from rowmill.config.sections import (
        AdmissionConfig,
        CheckpointConfig,
        DataConfig,
        EvictionConfig,
        ModelConfig,
        RowsConfig,
        StoreConfig,
        TrainConfig,
    )
    from rowmill.config.setting import ConfigError, Setting

__all__ = [
    "SECTIONS",
    "AdmissionConfig",
    "CheckpointConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "EvictionConfig",
    "ModelConfig",
    "RowsConfig",
    "Setting",
    "StoreConfig",
    "TrainConfig",
    "load_config",
    "section_from",
    "settings_of",
]

# A task's settings import `config.setting`, and `config.config` imports them.
__getattr__, __dir__ = lazy(
    __name__,
    {
        "config": ("SECTIONS", "Config", "load_config", "section_from", "settings_of"),
        "sections": (
            "AdmissionConfig",
            "CheckpointConfig",
            "DataConfig",
            "EvictionConfig",
            "ModelConfig",
            "RowsConfig",
            "StoreConfig",
            "TrainConfig",
        ),
        "setting": ("ConfigError", "Setting"),
    },
)
