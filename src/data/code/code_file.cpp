#include "data/code/code_file.h"

#include <fmt/format.h>

#include <fstream>

#include "core/error.h"

namespace hone {

CodeFile write_code_file(const std::vector<DatasetEntry>& entries, const TokenCounter& count,
                         const std::filesystem::path& output) {
  std::error_code error;
  std::filesystem::create_directories(output, error);
  if (error) throw UserError("the folder cannot be made: " + error.message(), output.string());
  CodeFile result{output / "all_data.jsonl", 0, {}};
  const std::filesystem::path temporary = output / "all_data.jsonl.tmp";
  std::ofstream file(temporary, std::ios::binary);
  for (const DatasetEntry& entry : entries) {
    HONE_ASSERT(entry.code.has_value());
    CodeReader reader(entry.path, *entry.code, count);
    for (CodeReader::Sample sample; file && reader.next(sample); ++result.samples) {
      const Json row = {
          {"text", sample.text}, {"type", name_of(sample.kind)}, {"file", sample.file}, {"line", sample.line}};
      file << row.dump() << '\n';
    }
    result.statistics.push_back(fmt::format("{}: {}", entry.path, reader.statistics().to_text("; ")));
  }
  file.close();
  if (file) std::filesystem::rename(temporary, result.path, error);
  if (!file || error) {
    std::filesystem::remove(temporary, error);
    throw UserError("the file cannot be written", result.path.string(), "check its folder, permissions and free space");
  }
  return result;
}

}  // namespace hone
