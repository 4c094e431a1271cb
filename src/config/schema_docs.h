// Documents generated from the schema: docs/config.md and the JSON Schema.
#pragma once

#include <string>

#include "core/text/json_fwd.h"

namespace hone {

/// The text of docs/config.md.
std::string schema_markdown();

/// A JSON Schema (draft 2020-12) of a configuration file, for editors: flat or sectioned, aliases included.
Json schema_json();

}  // namespace hone
