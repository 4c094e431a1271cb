// Python packages that tests compare with: TensorBoard's reader, an MLflow server. Not needed to build or to run Hone.
#pragma once

#include <string>

namespace hone {

/// The Python that has these packages: HONE_PYTHON, or what tools/test_python.sh installed; "" with the reason in `why`
/// where there is none. A test then skips with that line.
std::string python_with(const std::string& module, std::string& why);

}  // namespace hone
