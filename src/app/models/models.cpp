#include "app/models/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/output.h"
#include "models/registry.h"
#include "report/table.h"
#include "report/terminal.h"

namespace hone {

namespace {

/// What the reference cases of an architecture prove, on a CPU and on a GPU. Whether a model fits is a matter of memory
/// (docs/fits.md).
std::vector<std::string> cells_of(const Architecture& architecture) {
  return {architecture.released,
          architecture.name,
          architecture.experts ? "full, LoRA, expert LoRA" : "full, LoRA",
          architecture.cases.empty() ? "none" : fmt::format("{}", fmt::join(architecture.cases, ", "))};
}

const std::vector<std::string>& header() {
  static const std::vector<std::string> names = {"models", "architecture", "methods", "reference cases"};
  return names;
}

}  // namespace

std::string models_markdown() {
  std::string text = fmt::format("| {} |\n|", fmt::join(header(), " | "));
  for (size_t i = 0; i < header().size(); ++i) text += "---|";
  for (const Architecture& architecture : architectures()) {
    text += fmt::format("\n| {} |", fmt::join(cells_of(architecture), " | "));
  }
  return text + "\n";
}

Json models_json() {
  Json list = Json::array();
  for (const Architecture& architecture : architectures()) {
    list.push_back({{"architecture", architecture.name},
                    {"model_type", architecture.model_type},
                    {"released", architecture.released},
                    {"experts", architecture.experts},
                    {"cases", architecture.cases}});
  }
  return list;
}

int run_models(bool markdown, bool json) {
  if (json || markdown) {
    print_text(json ? models_json().dump(2) + "\n" : models_markdown());
    return 0;
  }
  std::vector<Table::Column> columns;
  for (const std::string& name : header()) {  // in narrow terminals the models and what is trained of them stay
    const bool stays = name == "models" || name == "methods";
    columns.push_back({.name = name, .drop = stays ? 0 : static_cast<int>(columns.size())});
  }
  Table table(columns);
  for (const Architecture& architecture : architectures()) table.add_row(cells_of(architecture));
  print_text(table.to_string(false, 2, Terminal::of(1).table_width()));
  return 0;
}

}  // namespace hone
