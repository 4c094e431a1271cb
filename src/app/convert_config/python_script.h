// Training scripts in Python (TRL, Unsloth, transformers with PEFT): their arguments, where they are literals. The
// script is parsed, never run.
#pragma once

#include <string>
#include <vector>

#include "app/config/config_reader.h"
#include "app/convert_config/translation.h"

namespace hone {

// The tokens of Python, as far as arguments of calls need them.

struct PythonToken {
  enum class Kind { kName, kNumber, kString, kFormatted, kOperator, kLineEnd, kEnd };

  Kind kind = Kind::kEnd;
  std::string text;  ///< of a string: its value; of a formatted one (f"…") and of all others: as written
  int line = 1;
};

/// Comments are left out, as are line ends inside brackets and behind a backslash. Ends in one kEnd. A string that is
/// not closed ends with the text.
std::vector<PythonToken> python_tokens(const std::string& text);

struct PythonScript {
  std::string tool;          ///< "unsloth", "trl" or "transformers"
  ConfigNode root;           ///< keyword arguments of the calls that say how is trained, and `dataset`
  std::vector<Remark> look;  ///< arguments that are computed, and code that makes the rows
};

/// Reads the calls that make a model, adapters, arguments, a data set and a trainer. Values are literals (texts,
/// numbers and sums of them, True, False, None, lists, tuples, dictionaries) or names that were given one before.
/// Throws UserError if nothing in it starts a supervised training; `name` is the file's.
PythonScript read_python_script(const std::string& text, const std::string& name);

}  // namespace hone
