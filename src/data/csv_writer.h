// Rows of CSV as RFC 4180 writes them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hone {

/// One record with its line end (CRLF is for the wire; files here end lines with a line feed). A field with a comma, a
/// quote, a line break, or white space at an end stands in quotes.
std::string csv_record(const std::vector<std::string>& fields);

}  // namespace hone
