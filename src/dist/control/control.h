// Control: host-side communication of all ranks of a run. Ranks exchange small texts, detect lost ranks, and tell each
// other why a rank cannot continue.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hone {

class Transport;

class Control {
 public:
  virtual ~Control() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Returns the texts of all ranks, by rank. All ranks call it in the same order; it waits for them. Throws as check()
  /// does.
  virtual std::vector<std::string> exchange(std::string_view mine) = 0;
  void barrier() { exchange({}); }
  /// The text of rank `root`.
  std::string broadcast(std::string_view mine, int root) { return exchange(mine)[static_cast<size_t>(root)]; }
  /// Whether `mine` is true on any rank. Use it for decisions that all ranks must take alike.
  bool any(bool mine);
  /// The first text, by rank, that is not empty; "" if all are: a problem that one rank has found ends it for all.
  std::string first_stated(std::string_view mine);
  /// Throws UserError on all ranks if `text`, the lines of `what` ("configuration"), is not the same on all ranks. The
  /// error contains the first line that differs.
  void check_same(const std::string& what, const std::string& text);

  // Progress of the rank, for messages about lost ranks. Any thread may call these; the cost is negligible.

  virtual void at_step(int64_t step) = 0;
  /// The rank has begun another collective, of any communicator; `name` must stay valid. Returns how many it has begun.
  virtual int64_t begin_collective(const char* name) = 0;
  /// The first `count` of them have ended.
  virtual void end_collectives(int64_t count) = 0;

  /// Collective: one more way between the host memory of all ranks, which this must outlive. A thread may use it while
  /// others use other ways. Throws Error(kDeviceFailed) if a rank cannot be reached or is lost.
  virtual std::unique_ptr<Transport> connect_memory() = 0;

  /// Ends the group because this rank failed (a full disk): check() throws `reason` on the other ranks.
  virtual void fail(const std::string& reason) = 0;
  /// Throws Error(kDeviceFailed) if the group has ended: a rank is lost, hangs, or has failed. Any thread may call it.
  virtual void check() = 0;
  /// After the group has ended: the lost ranks, in ascending order. The other ranks can still save.
  virtual std::vector<int> lost() const = 0;
  /// Calls `callback` once, on any thread, when the group ends; immediately if it has ended.
  virtual void on_end(std::function<void()> callback) = 0;
};

/// Call it where something fails that a lost rank may have caused: waits two seconds for the control channel to report
/// the loss, and then throws as check() does.
void await_loss(Control& control);

/// Throws because a connection to another rank has broken: the lost rank (await_loss), or else `problem`.
[[noreturn]] void throw_broken(Control& control, const std::string& problem);

/// The line that other ranks get about an error: its message and its place.
std::string reason_of(const std::exception& error);

}  // namespace hone
