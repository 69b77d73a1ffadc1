"""An export that the system lets write no more is an error of ours, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import resource, signal, sys
from causal_attn import causal_attention
from causal_attn.errors import CausalAttnError
from causal_attn.export import export

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    export(causal_attention, sys.argv[1], form="decomposed", lengths=(1, 2))
except CausalAttnError as error:
    sys.exit(0 if "File too large" in str(error) else str(error))
sys.exit("it was written")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize("most_bytes", [1000, 4000])
def test_a_limit_on_the_size_of_files(tmp_path: Path, most_bytes: int) -> None:
    command = [sys.executable, "-c", CODE, str(tmp_path / "package"), str(most_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
