#include "report/page/record_lines.h"

#include <string>
#include <vector>

#include "core/files/file_bytes.h"

namespace hone {

LinesRead each_line(const std::filesystem::path& path, size_t longest,
                    const std::function<void(std::string_view line, bool whole)>& line) {
  OpenFile file(path);
  LinesRead read;
  std::vector<char> chunk(size_t{1} << 20);
  std::string rest;
  bool too_long = false;
  const auto add = [&](std::string_view part) {
    too_long |= rest.size() + part.size() > longest;
    if (too_long) return rest.clear();
    rest += part;
  };
  const auto end = [&](bool whole) {
    ++read.lines;
    if (too_long) {
      ++read.too_long;
    } else {
      line(rest, whole);
    }
    rest.clear();
    too_long = false;
  };
  while (const size_t count = file.read_next(chunk.data(), chunk.size())) {
    std::string_view bytes(chunk.data(), count);
    for (size_t at = bytes.find('\n'); at != std::string_view::npos; at = bytes.find('\n')) {
      add(bytes.substr(0, at));
      end(true);
      bytes.remove_prefix(at + 1);
    }
    add(bytes);
  }
  if (!rest.empty() || too_long) end(false);
  return read;
}

}  // namespace hone
