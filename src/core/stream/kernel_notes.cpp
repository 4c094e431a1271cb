#include "core/stream/kernel_notes.h"

#include "core/stream/stream.h"

namespace hone {

KernelNotes::KernelNotes(Stream& stream) : stream_(stream) { stream.set_kernel_notes(this); }

KernelNotes::~KernelNotes() { stream_.set_kernel_notes(nullptr); }

std::string KernelNotes::text() const {
  std::string text;
  for (const auto& [op, kernels] : kernels_) {
    text += (text.empty() ? "" : "; ") + op + ": ";
    for (const std::string& kernel : kernels) text += (kernel == *kernels.begin() ? "" : ", ") + kernel;
  }
  return text;
}

}  // namespace hone
