"""Settings of a run: sections of a TOML file as frozen dataclasses, and flags that override them.

`Config` holds all sections. Sections of a single task are in the `settings.py` of the task's package.
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

# Lazy, because a task's settings import `config.setting`, and `config.config` imports the task's settings.
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
