// KernelNotes: the kernels that each op of a stream has used.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

namespace hone {

class Stream;

/// Collects during its lifetime. Ops that choose between kernels report their choice, on the host thread, with
/// Context::note_kernel().
class KernelNotes {
 public:
  /// The stream's ops report to this object from now on; the stream must outlive it.
  explicit KernelNotes(Stream& stream);
  ~KernelNotes();
  KernelNotes(const KernelNotes&) = delete;
  KernelNotes& operator=(const KernelNotes&) = delete;

  void add(std::string_view op, std::string_view kernel) { kernels_[std::string(op)].emplace(kernel); }
  const std::map<std::string, std::set<std::string>>& kernels() const { return kernels_; }
  /// "attention: sm90 backward, sm90 forward; experts: sm90": ops and kernels in alphabetical order.
  std::string text() const;

 private:
  Stream& stream_;
  std::map<std::string, std::set<std::string>> kernels_;
};

}  // namespace hone
