// For which GPUs a build has code.
#pragma once

#include <string_view>

namespace hone::cuda {

/// Whether code compiled for `architectures` runs on a GPU of compute capability major.minor. They are written as nvcc
/// does, separated by white space, "," or ";": machine code "80" runs on 8.0 and later GPUs of its major version,
/// "90a" on 9.0 alone, and "compute_80" (PTX) on 8.0 and everything later. Others are not counted.
bool has_code_for(std::string_view architectures, int major, int minor);

}  // namespace hone::cuda
