#include "report/page/record_lines.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/files/file_bytes.h"

namespace hone {

namespace {

constexpr size_t kMostBefore = 4096;

}  // namespace

FollowedLines::FollowedLines(std::filesystem::path path, size_t longest) : path_(std::move(path)), longest_(longest) {}

bool FollowedLines::is_same(int descriptor, const Identity& identity, uint64_t size) const {
  if (identity_ != identity || size < position_) return false;
  std::string before(before_.size(), '\0');
  const ssize_t count =
      ::pread(descriptor, before.data(), before.size(), static_cast<off_t>(position_ - before.size()));
  return count == std::ssize(before) && before == before_;
}

void FollowedLines::add_to_rest(std::string_view part) {
  rest_is_too_long_ |= rest_.size() + part.size() > longest_;
  if (rest_is_too_long_) {
    rest_.clear();
  } else {
    rest_ += part;
  }
}

void FollowedLines::take(std::string_view bytes, const std::function<void(std::string_view line)>& line) {
  position_ += bytes.size();
  before_ += bytes.substr(bytes.size() - std::min(bytes.size(), kMostBefore));
  before_.erase(0, before_.size() - std::min(before_.size(), kMostBefore));
  for (size_t at = bytes.find('\n'); at != std::string_view::npos; at = bytes.find('\n')) {
    add_to_rest(bytes.substr(0, at));
    if (rest_is_too_long_) {
      ++too_long_;
    } else {
      line(rest_);
    }
    rest_.clear();
    rest_is_too_long_ = false;
    bytes.remove_prefix(at + 1);
  }
  add_to_rest(bytes);
}

void FollowedLines::read_on(const std::function<void()>& anew, const std::function<void(std::string_view line)>& line) {
  const auto begin = [&] {
    *this = FollowedLines(path_, longest_);
    anew();
  };
  std::error_code error;
  if (!std::filesystem::exists(path_, error)) return begin();
  try {
    OpenFile file(path_);
    struct stat status {};
    ::fstat(file.descriptor(), &status);
    const Identity identity(status.st_dev, status.st_ino);
    if (!is_same(file.descriptor(), identity, file.size())) begin();
    identity_ = identity;
    ::lseek(file.descriptor(), static_cast<off_t>(position_), SEEK_SET);
    std::vector<char> chunk(size_t{1} << 20);
    while (const size_t count = file.read_next(chunk.data(), chunk.size())) take({chunk.data(), count}, line);
  } catch (const UserError&) {
    begin();
    there_ = true;
    throw;
  }
  there_ = true;
}

}  // namespace hone
