// What resume_from_checkpoint says a run goes on from.
#pragma once

#include <string>
#include <string_view>

namespace hone {

class ResumeFrom {
 public:
  /// Nothing: the run starts anew.
  ResumeFrom() = default;
  /// false, auto (the newest checkpoint of output_dir), best, or the path of a checkpoint.
  explicit ResumeFrom(std::string text);

  bool nothing() const { return kind_ == Kind::kNothing; }
  bool newest() const { return kind_ == Kind::kNewest; }
  bool best() const { return kind_ == Kind::kBest; }
  /// As it was written.
  const std::string& text() const { return text_; }

  bool operator==(const ResumeFrom&) const = default;

 private:
  enum class Kind { kNothing, kNewest, kBest, kPath };

  Kind kind_ = Kind::kNothing;
  std::string text_ = "false";
};

}  // namespace hone
