// FloatStack: a thread's workspaces, one after another in float32 scratch.
#pragma once

#include <cstdint>

namespace hone::cpu {

/// Allocates from a thread's scratch; without memory (null) it only counts.
class FloatStack {
 public:
  explicit FloatStack(float* begin) : begin_(begin) {}
  float* take(int64_t count) {
    float* taken = begin_ == nullptr ? nullptr : begin_ + used_;
    used_ += (count + 15) / 16 * 16;
    return taken;
  }
  int64_t used() const { return used_; }

 private:
  float* begin_;
  int64_t used_ = 0;
};

/// Floats that Workspace(args, stack) needs.
template <class Workspace, class Args>
int64_t workspace_floats(const Args& args) {
  FloatStack stack(nullptr);
  Workspace workspace(args, stack);
  return stack.used();
}

}  // namespace hone::cpu
