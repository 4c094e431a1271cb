// Control: the hosts of a group of ranks. Small texts pass between them at once, each knows whether the others live,
// and a rank that cannot go on tells the others why.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hone {

class Control {
 public:
  virtual ~Control() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Waits for all ranks, which call it in the same order; the texts of all, by rank. Throws as check() does.
  virtual std::vector<std::string> exchange(std::string_view mine) = 0;
  void barrier() { exchange({}); }
  /// The text of rank `root`.
  std::string broadcast(std::string_view mine, int root) { return exchange(mine)[static_cast<size_t>(root)]; }

  /// Which step the rank is at and which collective it is in ("" after it), for messages about lost ranks. May be
  /// called by any thread, and costs nothing.
  virtual void at_step(int64_t step) = 0;
  virtual void in_collective(const char* name) = 0;

  /// Ends the group for a reason of this rank's own (a full disk): check() throws it on the others.
  virtual void fail(const std::string& reason) = 0;
  /// Throws Error(kDeviceFailed) if the group has ended: a rank is lost, hangs, or has failed. Any thread.
  virtual void check() = 0;
};

/// A group of one.
class SingleControl : public Control {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> exchange(std::string_view mine) override { return {std::string(mine)}; }
  void at_step(int64_t) override {}
  void in_collective(const char*) override {}
  void fail(const std::string&) override {}
  void check() override {}
};

}  // namespace hone
