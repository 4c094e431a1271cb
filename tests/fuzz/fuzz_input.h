// What the fuzz targets share. A target is a function over bytes that somebody else wrote: whatever they are, the
// program accepts them or throws a UserError; any other exception, a crash, a report of a sanitizer or a hang is a bug.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace hone {

/// Runs `read`; a UserError is an answer.
void expect_answer(const std::function<void()>& read);

/// A file of this process that holds one input after another.
class InputFile {
 public:
  /// `name`: the last part of its path.
  explicit InputFile(const std::string& name);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  void write(std::string_view bytes) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace hone
