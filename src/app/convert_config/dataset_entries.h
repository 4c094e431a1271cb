// Converts data sets of other tools to entries of `datasets`, with the format of their rows.
#pragma once

#include <string>
#include <vector>

#include "app/convert_config/translation.h"

namespace hone {

// The format of rows in Axolotl's entries of datasets.

/// Converts `type` (a name, or the mapping of a user-defined prompt) to the members type, prompt_template and
/// column_mapping. Returns nothing for a name of the schema, and for an unknown name, which the entry's check reports.
std::vector<ConfigMember> members_of_type(const ConfigNode& type, Translation& result);

/// Converts field_thinking and template_thinking_key of an entry to the column_mapping that passes thoughts to the
/// template under the second name, or adds a remark if that is impossible.
void add_thinking(const ConfigNode& item, ConfigNode& entry, Translation& result);

/// The place where names of data sets are looked up.
struct DatasetSource {
  const Tool& tool;
  const ConfigNode& root;     ///< the whole source, which has LLaMA-Factory's dataset_dir and max_samples
  const std::string& folder;  ///< where the source is
};

/// Converts `value` (a path, paths, entries, or names of LLaMA-Factory's dataset_info.json) to a list of entries with
/// Hone's keys. Adds remarks to `result` about what cannot be converted.
ConfigNode dataset_entries(const DatasetSource& source, const ConfigNode& value, Translation& result);

}  // namespace hone
