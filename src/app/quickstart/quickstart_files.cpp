#include "app/quickstart/quickstart_files.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {

std::string_view quickstart_file(std::string_view name) {
  const std::span<const QuickstartFile> files = quickstart_files();
  const auto file = std::find_if(files.begin(), files.end(), [&](const QuickstartFile& f) { return f.name == name; });
  HONE_ASSERT(file != files.end(), std::string(name));
  return file->text;
}

std::string run_in_folder(std::string_view name, const std::filesystem::path& folder,
                          const std::map<std::string, std::string>& keys) {
  std::string text(quickstart_file(name));
  const std::string here = "quickstart/", quoted = Json((folder / "").generic_string()).dump();
  const std::string there = quoted.substr(1, quoted.size() - 2);  // paths are quoted in the file
  for (size_t at = text.find(here); at != std::string::npos; at = text.find(here, at + there.size())) {
    text.replace(at, here.size(), there);
  }
  for (const auto& [key, value] : keys) {
    const std::string stated = "\n" + key + ": ";
    const size_t line = text.find(stated);
    HONE_ASSERT(line != std::string::npos, key);
    const size_t begin = line + stated.size();
    text.replace(begin, text.find_first_of(" \n", begin) - begin, value);
  }
  return text;
}

std::vector<Example> read_examples(std::string_view name, int64_t count) {
  std::string_view rows = quickstart_file(name);
  std::vector<Example> examples;
  while (!rows.empty() && static_cast<int64_t>(examples.size()) < count) {
    const size_t end = rows.find('\n');
    const Json row = Json::parse(rows.substr(0, end));
    examples.push_back({row.at("prompt").get<std::string>(), row.at("response").get<std::string>()});
    rows.remove_prefix(end + 1);
  }
  return examples;
}

Json question_messages(const Example& example) {
  return Json::array({{{"role", "user"}, {"content", example.question}}});
}

}  // namespace hone
