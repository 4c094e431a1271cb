// The program's version.
#pragma once

namespace hone {

/// As the build gives it, e.g. "0.1.0".
const char* version();

}  // namespace hone
