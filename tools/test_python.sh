#!/usr/bin/env bash
# Installs the Python packages that some tests compare with (TensorBoard's reader, an MLflow server) into build-python/.
# Hone itself needs no Python; without this those tests are skipped.
set -euo pipefail
folder=$(cd "$(dirname "$0")/.." && pwd)/build-python
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check "tensorboard>=2.16" "mlflow>=2.16"
echo "HONE_PYTHON=$folder/bin/python"
