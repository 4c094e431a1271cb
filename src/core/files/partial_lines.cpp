#include "core/files/partial_lines.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/files/file_bytes.h"

namespace hone {

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

std::filesystem::path PartialLines::path_for(const std::filesystem::path& output) {
  std::filesystem::path path = output;
  return path += ".hone-partial";
}

PartialLines::PartialLines(const std::filesystem::path& output, const std::string& header,
                           const std::function<bool(std::string_view)>& is_whole,
                           const std::function<void(const std::string&)>& differs)
    : path_(path_for(output)) {
  if (path_.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path_.parent_path(), error);
  }
  file_ = open_to_append(path_);
  if (file_ < 0) fail();
  bool is_new = false;
  try {
    if (flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw UserError("another process writes these answers", path_.string(), "wait for it, or name another output");
    }
    constexpr uint64_t kAnySize = uint64_t{1} << 40;
    const std::string text = read_whole_file(path_, kAnySize);
    is_new = text.empty();
    const size_t first = text.find('\n');
    size_t kept = 0;
    if (first != std::string::npos && text.substr(0, first) == header) {
      kept = first + 1;
      for (size_t end = 0; (end = text.find('\n', kept)) != std::string::npos; kept = end + 1) {
        std::string line = text.substr(kept, end - kept);
        if (!is_whole(line)) break;
        earlier_.push_back(std::move(line));
      }
    } else if (first != std::string::npos) {
      differs(text.substr(0, first));
    }
    if (kept < text.size() && ftruncate(file_, static_cast<off_t>(kept)) != 0) fail();
    if (kept == 0) write(header + "\n");
    sync();
  } catch (...) {
    if (is_new) discard();
    close(file_);
    throw;
  }
}

PartialLines::~PartialLines() { close(file_); }

void PartialLines::append(const std::string& line) {
  write(line + "\n");
  if (seconds() - synced_ >= 1) sync();
}

void PartialLines::discard() {
  std::error_code error;
  std::filesystem::remove(path_, error);
}

void PartialLines::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(file_, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail();
    text.remove_prefix(static_cast<size_t>(count));
  }
}

void PartialLines::sync() {
  if (!sync_file(file_)) fail();
  synced_ = seconds();
}

void PartialLines::fail() const {
  throw UserError(std::string("the file cannot be written: ") + std::strerror(errno), path_.string(),
                  "check the folder's permissions and the free space");
}

}  // namespace hone
