// What an entry of datasets says about the form of its rows, in Axolotl's words, as keys of ours.
#pragma once

#include <string>
#include <vector>

#include "app/convert_config/translation.h"

namespace hone {

/// What `type` (a name, or the mapping of a user-defined prompt) is here: members type, prompt_template,
/// column_mapping. Nothing if it is a name that the schema knows or nobody does: the entry's own check says so.
std::vector<ConfigMember> members_of_type(const ConfigNode& type, Translation& result);

/// field_thinking and template_thinking_key of an entry: the column_mapping that hands thoughts to the template under
/// the second name, or a remark where no mapping can.
void add_thinking(const ConfigNode& item, ConfigNode& entry, Translation& result);

}  // namespace hone
