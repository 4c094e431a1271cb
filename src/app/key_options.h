// Keys of the configuration as options of a verb.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "config/resolve.h"
#include "config/rules.h"

namespace CLI {
class App;
}

namespace hone {

/// A key that a verb takes.
struct VerbKey {
  const char* key;               ///< canonical
  const char* option = nullptr;  ///< a name of the option before the key's own: "--micro-batches"
};

/// Values of keys where a verb's differ from the schema's; "": depends on the model.
using UsualValues = std::vector<std::pair<std::string, std::string>>;

/// Adds an option for each key: --zero-stage 3. Texts, values and defaults are the schema's. What is given is appended
/// to `stated` as KEY=VALUE, which must outlive the verb. On the command line KEY=VALUE means the same (arguments_of).
void add_keys(CLI::App* verb, std::vector<std::string>& stated, const UsualValues& usual,
              std::initializer_list<VerbKey> keys);

/// Resolves what is stated, with a verb's usual values as defaults. UserError for values that a key does not take, and
/// for keys that do not go together.
ResolvedConfig resolve_keys(const UsualValues& usual, const std::vector<std::string>& stated, RanksOfRun ranks,
                            RuleUse use);

}  // namespace hone
