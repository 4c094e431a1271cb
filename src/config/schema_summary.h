// What this version trains, on what, and what it knows and does not do: rows of a table in README.md, whose values are
// those of the schema.
#pragma once

#include <string>

namespace hone {

/// The rows Methods, Machines, Several ranks, Host memory and Not in this version, in Markdown.
std::string schema_summary();

}  // namespace hone
