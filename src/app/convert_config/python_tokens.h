// The tokens of Python, as far as arguments of calls need them.
#pragma once

#include <string>
#include <vector>

namespace hone {

struct PythonToken {
  enum class Kind { kName, kNumber, kString, kFormatted, kOperator, kLineEnd, kEnd };

  Kind kind = Kind::kEnd;
  std::string text;  ///< of a string: its value; of a formatted one (f"…") and of all others: as written
  int line = 1;
};

/// Comments are left out, as are line ends inside brackets and behind a backslash. Ends in one kEnd. A string that is
/// not closed ends with the text.
std::vector<PythonToken> python_tokens(const std::string& text);

}  // namespace hone
