#include "report/tracker/tracker_store.h"

#include <chrono>

namespace hone {

int64_t tracker_now() {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  return duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace hone
