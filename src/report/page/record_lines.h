// Lines of a file that another process may be writing, or has left unfinished.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace hone {

/// Reads the lines of a regular file that grows, each once.
class FollowedLines {
 public:
  /// The file need not exist yet. Lines of more than `longest` bytes are left out.
  FollowedLines(std::filesystem::path path, size_t longest);

  /// Calls `line` for each line that has got its end since the last call, without that end, in order. Before that,
  /// calls `anew` if it reads from the beginning: at first, and if the file is no longer the one that was read, which
  /// is shorter, another one, has other bytes before the place that was reached, or is not there. Throws UserError if
  /// the file cannot be read, after `anew`.
  void read_on(const std::function<void()>& anew, const std::function<void(std::string_view line)>& line);

  /// Whether the last call found a file.
  bool there() const { return there_; }
  /// What follows the end of the last whole line.
  const std::string& unfinished() const { return rest_; }
  /// Lines that were left out.
  int64_t too_long() const { return too_long_ + (rest_is_too_long_ ? 1 : 0); }
  const std::filesystem::path& path() const { return path_; }

 private:
  using Identity = std::pair<dev_t, ino_t>;

  bool is_same(int descriptor, const Identity& identity, uint64_t size) const;
  void take(std::string_view bytes, const std::function<void(std::string_view line)>& line);
  void add_to_rest(std::string_view part);

  std::filesystem::path path_;
  size_t longest_;
  bool there_ = false;
  std::optional<Identity> identity_;  // the file that was read
  uint64_t position_ = 0;             // bytes that were read
  std::string before_;                // the last of them
  std::string rest_;                  // the line that has no end yet
  bool rest_is_too_long_ = false;     // and is not kept
  int64_t too_long_ = 0;
};

}  // namespace hone
