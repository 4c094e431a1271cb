// Keys of a configuration that the schema does not have: found all at once, before a value is read.
#pragma once

#include "app/config/config_reader.h"

namespace hone {

/// Throws UserError naming every unknown key of both trees with its place and the nearest names, and, where the file is
/// one of another tool, the command that translates it. Keys of other tools that say nothing (`local_rank:`) are passed
/// over; an ambiguous name (batch_size) is answered with its question.
void check_names(const ConfigNode& file, const ConfigNode& overrides);

}  // namespace hone
