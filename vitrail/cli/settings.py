"""`vitrail settings`."""

from __future__ import annotations

from typing import Unpack

from vitrail.cli.output import AsJson
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_inference import SettingsFlags


@takes_flags(SettingsFlags)
def settings(name: str | None = None, /, *, json: AsJson = False, **flags: Unpack[SettingsFlags]) -> None:
    """List the settings of a training run: key, type, value in a recipe, flag and meaning.

    Each can be changed by `--set KEY=VALUE` or in a YAML file for `--config`.

    Parameters
    ----------
    name
        One setting, such as optim.lr, or one group, such as augment.
    """
    from dataclasses import asdict
    from json import dumps

    from vitrail.workflows.api import list_settings

    found = list_settings(name, **flags)
    if json:
        print(dumps({key: asdict(setting) for key, setting in found.items()}))
        return
    for setting in found.values():
        value = dumps(setting.value, ensure_ascii=False)
        print(
            f"{setting.key}: {value}{f'  ({setting.flag})' if setting.flag else ''}\n    {setting.meaning} [{setting.type}]"
        )
