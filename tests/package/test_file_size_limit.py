"""A package that the system lets no more be written of is an error of ours, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
CODE = """
import resource, signal, sys
from pathlib import Path
from package_samples import save_model, source
from causal_attn.errors import UsageError
from causal_attn.package import write_package

root = Path(sys.argv[1])
variants = [source(save_model(root / "source" / "model.onnx"))]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    write_package(path=root / "package", name="m", variants=variants)
except UsageError as error:
    sys.exit(0 if "File too large" in str(error) else str(error))
sys.exit("it was written")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize("most_bytes", [0, 100, 400])
def test_a_limit_on_the_size_of_files(tmp_path: Path, most_bytes: int) -> None:
    command = [sys.executable, "-c", CODE, str(tmp_path), str(most_bytes)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["source"]
