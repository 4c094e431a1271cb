// Lines of a file that another process may be writing, or has left unfinished.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

namespace hone {

struct LinesRead {
  int64_t lines = 0;     ///< whole lines, and a last one without an end
  int64_t too_long = 0;  ///< lines that were left out
};

/// Calls `line` for each line of a regular file, without its end, in order; also for a last one without an end
/// (`whole` is false). Lines of more than `longest` bytes are left out. Throws UserError if the file cannot be read.
LinesRead each_line(const std::filesystem::path& path, size_t longest,
                    const std::function<void(std::string_view line, bool whole)>& line);

}  // namespace hone
