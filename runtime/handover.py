"""Give ONNX Runtime a model that is held: its bytes, and where its external data is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from causal_attn.errors import UsageError
from causal_attn.runtime.ort import SessionOptions, add_files_in_memory

if TYPE_CHECKING:
    from causal_attn.package.hold import HeldModel

__all__ = ["FOLDER_OPTION", "FORMAT_OPTION", "hand_over"]

FOLDER_OPTION = "session.model_external_initializers_file_folder_path"
FORMAT_OPTION = "session.load_model_format"
"""Without it, bytes that are read as ONNX here can be read as ONNX Runtime's own format there."""


def hand_over(held: HeldModel, options: SessionOptions, *, shared: bool) -> bytes:
    """The bytes to make a session of, after `options` were told about the external data.

    Keep `held` open until the session is made, and call its `require_unchanged` then.

    Args:
        held: The model.
        options: Of this session.
        shared: They are the caller's, who may use them again. They would keep what they are told
            here for the next model, so that copied data goes into the bytes instead.

    Raises:
        UsageError: `options` are shared and were told about another folder before.
        PackageError: External data changed, or is too large to go into the bytes.
    """
    from causal_attn.package.hold import Weights

    if not held.files:
        return held.data
    if held.weights is Weights.MAP:
        _tell_folder(options, held.folder)
        return held.data
    if not shared:
        files = {name: file.memory or bytearray() for name, file in held.files.items()}
        add_files_in_memory(options, files)
    return held.with_data_inside(all_of_it=shared)


def _tell_folder(options: SessionOptions, folder: str) -> None:
    try:
        options.get_session_config_entry(FOLDER_OPTION)
    except RuntimeError:
        options.add_session_config_entry(FOLDER_OPTION, folder)
        return
    raise UsageError(
        "`session_options` must be new for a model whose external data is mapped, got one that "
        "was used. Make one SessionOptions for each, or give a mapping."
    )
