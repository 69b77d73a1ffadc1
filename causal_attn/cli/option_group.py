"""Options that travel together are one dataclass in the code and one flag a field for the user."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints

__all__ = ["one_option_each"]


def one_option_each(command: Callable[..., None]) -> Callable[..., None]:
    """`command` for typer: a parameter that is a dataclass becomes one option for each field.

    Fields are annotated as options are (``Annotated[int | None, typer.Option(…)]``) and have
    defaults. `command` gets the dataclass, built from what the user gave.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }
    if not groups:
        return command
    shown = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            hints = get_type_hints(groups[name], include_extras=True)
            shown += [_parameter(field, hints[field.name]) for field in fields(groups[name])]
        else:
            shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def grouped(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    vars(grouped)["__signature__"] = signature.replace(parameters=shown)
    grouped.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return grouped


def _parameter(field: Field[Any], annotation: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
