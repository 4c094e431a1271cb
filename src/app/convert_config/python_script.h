// Reads the literal arguments of training scripts in Python (TRL, Unsloth, transformers with PEFT). Scripts are parsed,
// never executed.
#pragma once

#include <string>
#include <vector>

#include "app/convert_config/translation.h"
#include "config/config_reader.h"

namespace hone {

// The tokens of Python that are needed to read arguments of calls.

struct PythonToken {
  enum class Kind { kName, kNumber, kString, kFormatted, kOperator, kLineEnd, kEnd };

  Kind kind = Kind::kEnd;
  std::string text;  ///< kString: its value; else the source text
  int line = 1;
};

/// The tokens without comments and without line ends inside brackets or after a backslash. The last token is kEnd. An
/// unterminated string ends with the text.
std::vector<PythonToken> python_tokens(const std::string& text);

struct PythonScript {
  std::string tool;          ///< "unsloth", "trl" or "transformers"
  ConfigNode root;           ///< keyword arguments of the calls that configure training, and `dataset`
  std::vector<Remark> look;  ///< computed arguments, and code that produces rows
};

/// Reads the calls that construct a model, adapters, arguments, a data set and a trainer. Values are literals (texts,
/// numbers and sums of them, True, False, None, lists, tuples, dictionaries) or names that were assigned one. Throws
/// UserError if the script `name` does not start a supervised training.
PythonScript read_python_script(const std::string& text, const std::string& name);

}  // namespace hone
