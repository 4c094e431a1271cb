// RowTemplate: a Jinja template over the columns of one row of data, as lm-evaluation-harness's doc_to_text.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/text/json_fwd.h"

namespace hone {

namespace jinja {
class Template;
}

class RowTemplate {
 public:
  /// `option` is where the template is from, for errors. UserError at `option` if it cannot be parsed.
  RowTemplate(std::string_view source, std::string option);
  ~RowTemplate();
  RowTemplate(RowTemplate&&) noexcept;
  RowTemplate& operator=(RowTemplate&&) noexcept;

  /// The text for a row (an object), whose columns are the variables. A line break at the template's end stays, and a
  /// column that the row lacks is an error, as in the harness. UserError at `where` (file:line).
  std::string render(const Json& row, const std::string& where) const;

 private:
  std::string option_;
  bool ends_line_;
  std::unique_ptr<const jinja::Template> template_;
};

}  // namespace hone
