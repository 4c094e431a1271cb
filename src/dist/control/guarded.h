// guarded: runs the work of one rank, and tells the other ranks if it fails.
#pragma once

#include <exception>

#include "dist/control/control.h"

namespace hone {

/// Runs `work`. If it throws, sends the reason to the other ranks of `control` (null: none) first, so that they do not
/// wait.
template <class Work>
auto guarded(Control* control, Work&& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    if (control != nullptr) control->fail(reason_of(error));
    throw;
  }
}

}  // namespace hone
