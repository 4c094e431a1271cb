#include "data/csv_writer.h"

namespace hone {

std::string csv_record(const std::vector<std::string>& fields) {
  std::string record;
  for (size_t i = 0; i < fields.size(); ++i) {
    const std::string& field = fields[i];
    if (i > 0) record += ',';
    const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
    // A record of one empty field would be a blank line, which readers skip.
    const bool quoted = field.find_first_of(",\"\r\n") != std::string::npos || (fields.size() == 1 && field.empty()) ||
                        (!field.empty() && (is_blank(field.front()) || is_blank(field.back())));
    if (!quoted) {
      record += field;
      continue;
    }
    record += '"';
    for (const char c : field) {
      if (c == '"') record += '"';
      record += c;
    }
    record += '"';
  }
  return record + "\n";
}

}  // namespace hone
