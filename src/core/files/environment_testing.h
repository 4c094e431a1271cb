// For tests: variables of the environment.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace hone {

/// Sets a variable while it lives, also for programs that are started.
class StatedVariable {
 public:
  StatedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~StatedVariable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  StatedVariable(const StatedVariable&) = delete;
  StatedVariable& operator=(const StatedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace hone
