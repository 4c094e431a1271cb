// Control: the hosts of a group of ranks. Small texts pass between them at once, each knows whether the others live,
// and a rank that cannot go on tells the others why.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
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
  /// Whether it is so on some rank: what all ranks do next must not depend on what one of them knows.
  bool any(bool mine);
  /// Throws UserError on all ranks if `text`, lines of `what` ("configuration"), is not the same on all of them; the
  /// first line that differs is named.
  void check_same(const std::string& what, const std::string& text);

  /// Which step the rank is at and which collective it is in ("" after it), for messages about lost ranks. May be
  /// called by any thread, and costs nothing.
  virtual void at_step(int64_t step) = 0;
  virtual void in_collective(const char* name) = 0;

  /// Ends the group for a reason of this rank's own (a full disk): check() throws it on the others.
  virtual void fail(const std::string& reason) = 0;
  /// Throws Error(kDeviceFailed) if the group has ended: a rank is lost, hangs, or has failed. Any thread.
  virtual void check() = 0;
  /// Once the group has ended: the ranks that cannot go on, from the smallest. The others can still save.
  virtual std::vector<int> lost() const = 0;
  /// Called once, by any thread, when the group ends; at once if it has.
  virtual void on_end(std::function<void()> callback) = 0;
};

/// Throws because a connection to another rank has broken. That may be seen before it is known who is lost: it is
/// waited for, for the name, and only then `problem` is the error.
[[noreturn]] void throw_broken(Control& control, const std::string& problem);

/// What of an error the other ranks are told: what and where, in a line.
std::string reason_of(const std::exception& error);

}  // namespace hone
