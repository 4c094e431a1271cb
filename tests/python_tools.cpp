#include "python_tools.h"

#include <cstdlib>
#include <filesystem>

namespace hone {

std::string python_with(const std::string& module, std::string& why) {
  const char* stated = std::getenv("HONE_PYTHON");
  const std::string python = stated != nullptr ? stated : HONE_SOURCE_DIR "/build-python/bin/python";
  if (!std::filesystem::exists(python)) {
    why = python + " is not there: tools/test_python.sh installs it, or HONE_PYTHON names another";
    return "";
  }
  // find_spec does not import the package, which takes seconds.
  const std::string command = "'" + python + "' -c 'import importlib.util as u, sys; sys.exit(u.find_spec(\"" + module +
                              "\") is None)' 2>/dev/null";
  if (std::system(command.c_str()) == 0) return python;
  why = python + " has no package " + module + ": tools/test_python.sh installs it";
  return "";
}

}  // namespace hone
