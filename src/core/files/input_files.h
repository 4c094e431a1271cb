// InputFiles: the inputs of a command (a model, an adapter, data), which it must not overwrite. Files are identified by
// device and inode and folders by their real path, so links, hard links and other spellings of a path are detected.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace hone {

class InputFiles {
 public:
  /// Adds a file, or a folder with its contents (and the targets of its links). `what` is for messages: "the model".
  /// Ignores a path that does not exist; reading it fails later.
  void add(const std::filesystem::path& path, const std::string& what);

  /// Throws UserError with both paths if `output`, which is to be written, replaced or removed, is an input, contains
  /// one or is inside one. For a folder that is only written into, check its files one by one instead.
  void refuse(const std::filesystem::path& output) const;

  /// Throws UserError if files in the folder `output` would be inside an input folder.
  void refuse_inside(const std::filesystem::path& output) const;

 private:
  struct Input {
    std::filesystem::path path, real;
    std::string what;
    bool folder = false;
  };
  [[noreturn]] static void overlap(const std::filesystem::path& output, const Input& input);

  std::vector<Input> inputs_;
  std::map<std::pair<uint64_t, uint64_t>, size_t> files_;  // (device, inode) → index of the input
};

}  // namespace hone
