// PartialLines: lines that a long command has ready, in OUTPUT.hone-partial, so that the same command goes on after a
// kill. The first line says what they belong to. One process writes them at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace hone {

class PartialLines {
 public:
  static std::filesystem::path path_for(const std::filesystem::path& output);

  /// Opens the file, which need not exist. If its first line is `header`, its other complete lines for which `is_whole`
  /// holds, up to the first that is not, are kept, and anything after them is dropped. If it is another one, calls
  /// `differs` with it, which throws to keep the file; else it begins anew. UserError if the file cannot be written, or
  /// another process writes it.
  PartialLines(const std::filesystem::path& output, const std::string& header,
               const std::function<bool(std::string_view line)>& is_whole,
               const std::function<void(const std::string& found)>& differs);
  ~PartialLines();
  PartialLines(const PartialLines&) = delete;
  PartialLines& operator=(const PartialLines&) = delete;

  /// The lines that an earlier process left, without line breaks.
  const std::vector<std::string>& earlier() const { return earlier_; }
  /// Adds a line, without its line break. It is on the disk when this returns, or a second later.
  void append(const std::string& line);
  /// Removes the file: what it had is elsewhere.
  void discard();

 private:
  void write(std::string_view text);
  void sync();
  [[noreturn]] void fail() const;

  const std::filesystem::path path_;
  int file_ = -1;
  double synced_ = 0;  // seconds
  std::vector<std::string> earlier_;
};

}  // namespace hone
