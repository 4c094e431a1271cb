// Translates the keys of another tool to Hone's, collects remarks about keys that cannot be translated, and writes the
// result.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/tools/tool.h"
#include "core/text/json.h"

namespace hone {

/// A key of Hone and the origin of its value.
struct TranslatedKey {
  const KeySpec* key = nullptr;
  Json value;
  std::string note;  ///< the source's statement, "micro_batch_size: 2", or the tool whose default it is
};

/// A statement of the source that is not in the result.
struct Remark {
  std::string said;   ///< "dpo_beta: 0.1"
  std::string where;  ///< file:line
  std::string why;
};

struct Translation {
  std::vector<TranslatedKey> stated;    ///< in the order of the schema
  std::vector<TranslatedKey> defaults;  ///< the tool's defaults that differ from Hone's
  std::vector<Remark> look;             ///< for the user to check: training is the same only if `why` holds
  std::vector<Remark> no_effect;
  std::vector<Remark> missing;  ///< not in this version; training is the same without it
  std::vector<Remark> refused;  ///< would change training
};

struct TranslationSource {
  ConfigNode root;
  std::vector<Remark> look = {};  ///< remarks from reading it
  std::string folder;             ///< searched for its files, in addition to the current folder
  int64_t devices = 1;            ///< the number of devices, for batch sizes per device
  /// Whether the model of a path or id has routed experts, nothing if that is not known; may be empty.
  std::function<std::optional<bool>(const std::string& model)> has_experts = {};
  /// Whether the tokenizer of a folder has a token, nothing if it is not here; may be empty.
  std::function<std::optional<bool>(const std::string& folder, const std::string& token)> has_token = {};
};

/// Translates a source. Throws UserError only for contradictions (a key stated twice with different values) and broken
/// files; everything else becomes a Remark.
Translation translate(const Tool& tool, const TranslationSource& source);

/// The text of run.yaml: keys by group with their original names, then remarks as comments. `source` and the number of
/// devices are at the top. Variables of a script remain variables, or become plain text (`$${NAME}`) without `expand`.
std::string converted_yaml(const Translation& translation, const Tool& tool, const std::string& source, int64_t devices,
                           bool expand = true);

}  // namespace hone
