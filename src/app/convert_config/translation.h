// From the keys of another tool to ours: what each of them becomes, what is said about those that become nothing, and
// the text of the result.
#pragma once

#include <string>
#include <vector>

#include "app/convert_config/tool.h"
#include "core/json.h"

namespace hone {

/// A key of ours and where its value comes from.
struct TranslatedKey {
  const KeySpec* key = nullptr;
  Json value;
  std::string note;  ///< "micro_batch_size: 2", as it was written; or whose default it is
};

/// Something of the source that is not in the result.
struct Remark {
  std::string said;   ///< "dpo_beta: 0.1"
  std::string where;  ///< file:line
  std::string why;
};

struct Translation {
  std::vector<TranslatedKey> stated;    ///< in the order of the schema
  std::vector<TranslatedKey> defaults;  ///< what the tool does without being told, where Hone does something else
  std::vector<Remark> look;             ///< to be looked at: the same only if `why` holds
  std::vector<Remark> no_effect;
  std::vector<Remark> missing;  ///< not in this version; what is learnt is the same without
  std::vector<Remark> refused;  ///< would change what is learnt
};

struct TranslationSource {
  ConfigNode root;
  std::vector<Remark> look = {};  ///< what reading it has left to be looked at
  std::string folder;             ///< where files that it names are looked for, besides the current folder
  int64_t devices = 1;            ///< on which its batch is stated per device
};

/// Translates. Throws UserError only for a source that contradicts itself (a key stated twice with different values, a
/// broken file that it names); everything else is a Remark.
Translation translate(const Tool& tool, const TranslationSource& source);

/// run.yaml: keys by group with what they were called, then as comments what is to be looked at, what has no effect and
/// why, and what was left out. `source` and the devices of its batch are named at the top. Variables of a script stay
/// variables, or plain text (`$${NAME}`) unless `expand`.
std::string converted_yaml(const Translation& translation, const Tool& tool, const std::string& source, int64_t devices,
                           bool expand = true);

}  // namespace hone
