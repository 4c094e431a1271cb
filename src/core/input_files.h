// What a command reads, so that it does not write over it: a model, an adapter, data. Files are told apart by device
// and inode and folders by their real path, so a link, a hard link or another spelling of a path hides nothing.
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
  /// A file, or a folder with what it holds (and what its links lead to). `what` is for messages: "the model". What is
  /// not there is left out; reading it fails later.
  void add(const std::filesystem::path& path, const std::string& what);

  /// UserError with both paths if `output`, which is to be written, replaced or removed, is an input, holds one or lies
  /// inside one. A folder `output` that is only written into is asked for file by file instead.
  void refuse(const std::filesystem::path& output) const;

  /// UserError if files written into the folder `output` would lie inside an input folder.
  void refuse_inside(const std::filesystem::path& output) const;

 private:
  struct Input {
    std::filesystem::path path, real;
    std::string what;
    bool folder = false;
  };
  [[noreturn]] static void overlap(const std::filesystem::path& output, const Input& input);

  std::vector<Input> inputs_;
  std::map<std::pair<uint64_t, uint64_t>, size_t> files_;  // device and inode → index of the input
};

}  // namespace hone
