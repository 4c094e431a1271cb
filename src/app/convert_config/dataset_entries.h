// Data sets as other tools name them → entries of `datasets`, and the form of their rows.
#pragma once

#include <string>
#include <vector>

#include "app/convert_config/translation.h"

namespace hone {

// What an entry of datasets says about the form of its rows, in Axolotl's words, as keys of ours.

/// What `type` (a name, or the mapping of a user-defined prompt) is here: members type, prompt_template,
/// column_mapping. Nothing if it is a name that the schema knows or nobody does: the entry's own check says so.
std::vector<ConfigMember> members_of_type(const ConfigNode& type, Translation& result);

/// field_thinking and template_thinking_key of an entry: the column_mapping that hands thoughts to the template under
/// the second name, or a remark where no mapping can.
void add_thinking(const ConfigNode& item, ConfigNode& entry, Translation& result);

/// Where names of data sets are looked up.
struct DatasetSource {
  const Tool& tool;
  const ConfigNode& root;     ///< the whole source: LLaMA-Factory's dataset_dir and max_samples stand beside `dataset`
  const std::string& folder;  ///< of the source
};

/// `value` (a path, paths, entries, or names of LLaMA-Factory's dataset_info.json) as a list of entries with our keys.
/// What cannot be translated is added to `result`.
ConfigNode dataset_entries(const DatasetSource& source, const ConfigNode& value, Translation& result);

}  // namespace hone
