// Context: the stream and scratch memory of an op, and whether this is a dry pass.
#pragma once

#include <utility>

#include "core/cpu/thread_pool.h"
#include "core/memory/arena.h"
#include "core/stream/kernel_notes.h"
#include "core/stream/stream.h"

namespace hone {

/// The argument of every op. In a dry pass arenas only count, and nothing is launched.
class Context {
 public:
  Context(Stream& stream, Arena& scratch) : stream_(stream), scratch_(scratch) {}

  Device device() const { return stream_.device(); }
  Stream& stream() const { return stream_; }
  /// Memory for the duration of one op; take it in an ArenaScope.
  Arena& scratch() const { return scratch_; }
  bool dry() const { return scratch_.dry(); }
  int threads() const { return stream_.pool().size(); }

  /// Reports to Stream::set_kernel_notes which kernel an op uses: "attention", "AMX forward".
  void note_kernel(std::string_view op, std::string_view kernel) const {
    if (KernelNotes* notes = stream_.kernel_notes(); notes != nullptr && !dry()) notes->add(op, kernel);
  }

  /// Queues CPU work; does nothing in a dry pass. The work must capture pointers and sizes by value.
  void launch(Stream::Work work) const {
    if (!dry()) stream_.enqueue(std::move(work));
  }

 private:
  Stream& stream_;
  Arena& scratch_;
};

}  // namespace hone
